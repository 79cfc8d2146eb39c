"""`quorumctl dump-log` on batches that make little sense, and on several snapshots of one directory."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack
from types import SimpleNamespace

import pytest

from quorumd.wire.control_records import KRaftVoters, SnapshotFooter, SnapshotHeader
from quorumd.wire.records import Record, build_batch
from tests.quorumd.conftest import Done
from tests.quorumd.test_quorumctl_dump_log import TIME_MS, control, data, segment, voter
from tests.server.snapshot_logs import with_crc

Run = Callable[..., Done]


def snapshot(folder: Path, end_offset: int, *voters: int, epoch: int = 1) -> Path:
    path = folder / f"{end_offset:020d}-{epoch:010d}.checkpoint"
    members = KRaftVoters(voters=tuple(map(voter, voters)))
    batches = (
        control(SnapshotHeader(), members, at=0, epoch=epoch),
        data(b"v", at=2, epoch=epoch),
        control(SnapshotFooter(), at=3, epoch=epoch),
    )
    path.write_bytes(b"".join(batches))
    return path


def changed(batch: bytes, *, count: int, delta: int) -> bytes:
    """With another number of records, and of offsets."""
    made = bytearray(batch)
    made[23:27] = delta.to_bytes(4, "big", signed=True)
    made[57:61] = count.to_bytes(4, "big", signed=True)
    return with_crc(bytes(made))


def files_of(done: Done) -> list[dict[str, object]]:
    rows = map(json.loads, done.out.splitlines())
    return [row for row in rows if row["type"] == "file"]


def test_voters_of_a_snapshot_are_compared_with_none_and_those_of_the_log_with_the_newest(
    quorumctl: Run, tmp_path: Path
) -> None:
    for end_offset, voters in ((5, (1,)), (10, (1, 2))):
        snapshot(tmp_path, end_offset, *voters)
    members = KRaftVoters(voters=(voter(1), voter(2), voter(3)))
    segment(tmp_path, control(members, at=10), base_offset=10)
    done = quorumctl("dump-log", tmp_path)
    assert (done.code, done.err) == (0, "")
    shown = [line.split()[1][1:-1] for line in done.out.splitlines() if " ADD (" in line]
    assert shown == ["1", "1", "2", "3"]


def test_a_batch_that_takes_no_offset_moves_the_next_one_on_by_one(
    quorumctl: Run, tmp_path: Path
) -> None:
    empty = changed(data(b"a", at=0), count=0, delta=-1)
    path = segment(tmp_path, empty, data(b"b", at=1))
    assert "must follow" not in quorumctl("dump-log", path).err


def test_a_number_of_records_below_none_is_none(quorumctl: Run, tmp_path: Path) -> None:
    path = segment(tmp_path, changed(data(b"a", at=0), count=-5, delta=0), data(b"b", at=1))
    (found,) = files_of(quorumctl("dump-log", path, "--output", "json"))
    assert (found["batches"], found["records"]) == (2, 1)


def test_offsets_that_go_back_do_not_take_the_end_back(quorumctl: Run, tmp_path: Path) -> None:
    path = segment(tmp_path, data(b"a", b"b", b"c", at=0), data(b"d", at=1))
    done = quorumctl("dump-log", path, "--output", "json")
    (found,) = files_of(done)
    assert (done.code, found["first_offset"], found["next_offset"]) == (3, 0, 3)


def test_a_digit_that_is_no_number_names_no_later_segment(quorumctl: Run, tmp_path: Path) -> None:
    path = segment(tmp_path, data(b"a", at=0), data(b"b", at=1)[:-1])
    (tmp_path / "².log").touch()
    done = quorumctl("dump-log", path)
    assert done.code == 3
    assert "an unfinished last write" in done.err


def test_a_snapshot_that_is_cut_was_not_being_written(quorumctl: Run, tmp_path: Path) -> None:
    """It gets its name when it is whole."""
    path = snapshot(tmp_path, 5, 1)
    path.write_bytes(path.read_bytes()[:-20])
    done = quorumctl("dump-log", path)
    assert done.code == 3
    assert "bytes are no batch" in done.err
    assert "unfinished" not in done.err


def test_a_snapshot_whose_header_comes_later_does_not_begin_with_it(
    quorumctl: Run, tmp_path: Path
) -> None:
    path = tmp_path / f"{5:020d}-{1:010d}.checkpoint"
    batches = (data(b"v", at=0), control(SnapshotHeader(), at=1), control(SnapshotFooter(), at=2))
    path.write_bytes(b"".join(batches))
    done = quorumctl("dump-log", path)
    assert done.code == 3
    assert "byte 0: the snapshot does not begin with its header" in done.err


def test_nothing_is_read_out_of_a_damaged_batch(quorumctl: Run, tmp_path: Path) -> None:
    damaged = bytearray(data(b"visible", at=0))
    damaged[damaged.index(b"visible")] ^= 1
    path = segment(tmp_path, bytes(damaged))
    done = quorumctl("dump-log", path, "--print-data", "--output", "json")
    batch = json.loads(done.out.splitlines()[0])
    assert (done.code, batch["crc_is_valid"], "records" in batch) == (3, False, False)


@pytest.mark.parametrize(("producer_id", "is_shown"), [(-1, False), (0, True), (7, True)])
def test_a_producer_is_one_from_0_on(
    quorumctl: Run, tmp_path: Path, producer_id: int, is_shown: bool
) -> None:
    record = Record(timestamp=TIME_MS, value=b"v")
    batch = build_batch(
        [record], base_offset=0, epoch=1, producer_id=producer_id, producer_epoch=2, base_sequence=3
    )
    shown = quorumctl("dump-log", segment(tmp_path, batch)).out
    assert (f"producer {producer_id} epoch 2 sequence 3" in shown) is is_shown


@pytest.mark.parametrize(("rest", "code"), [(b"", 0), (b"\0\0\0", 0), (b"\0\1\0", 3)])
def test_zeros_that_make_no_entry_are_none(
    quorumctl: Run, tmp_path: Path, rest: bytes, code: int
) -> None:
    path = tmp_path / f"{0:020d}.index"
    path.write_bytes(pack(">ii", 1, 100) + rest)
    done = quorumctl("dump-log", path)
    assert (done.code, "byte 8 are no whole entry" in done.err) == (code, code == 3)


@pytest.mark.parametrize(
    ("name", "entries", "is_damaged"),
    [
        ("timeindex", pack(">qiqi", 5, 1, 0, 3), True),
        ("timeindex", pack(">qi", 0, 3), False),
        ("timeindex", pack(">qiqi", 5, 1, 5, 3), False),
        ("index", pack(">iiii", 2, 70, 1, 140), True),
    ],
)
def test_entries_of_an_index_go_up_or_stay_and_the_first_may_be_of_1970(
    quorumctl: Run, tmp_path: Path, name: str, entries: bytes, is_damaged: bool
) -> None:
    path = tmp_path / f"{0:020d}.{name}"
    path.write_bytes(entries + bytes(len(entries)))
    done = quorumctl("dump-log", path, "-o", "json")
    (row,) = map(json.loads, done.out.splitlines())
    assert len(row["entries"]) == len(entries) // (12 if name == "timeindex" else 8)
    assert (done.code == 3) is is_damaged


def test_an_epoch_below_the_highest_one_is_damage_though_the_one_before_it_was_lower(
    quorumctl: Run, tmp_path: Path
) -> None:
    batches = [data(b"v", at=at, epoch=epoch) for at, epoch in enumerate((5, 3, 4, 5))]
    done = quorumctl("dump-log", segment(tmp_path, b"".join(batches)))
    assert done.code == 3
    assert [place for place in ("offset 1:", "offset 2:", "offset 3:") if place in done.err] == [
        "offset 1:",
        "offset 2:",
    ]


@pytest.mark.parametrize(("options", "has_bar"), [((), False), (("--summary",), True)])
def test_no_bar_is_between_lines_on_one_terminal(
    tmp_path: Path,
    quorumctl: Run,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    has_bar: bool,
) -> None:
    sizes: list[int] = []

    @contextmanager
    def progress(label: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
        sizes.append(size_bytes)
        yield lambda step_bytes: None

    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: True)
    monkeypatch.setattr("quorumd.cli.dump_log.read_progress", progress)
    monkeypatch.setattr("quorumd.cli.dump_log.sys", SimpleNamespace(stdout=written))
    path = segment(tmp_path, data(b"a", at=0))
    assert quorumctl("dump-log", *options, path).code == 0
    assert sizes == [path.stat().st_size if has_bar else 0]
