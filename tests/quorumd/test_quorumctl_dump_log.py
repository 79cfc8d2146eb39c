"""`quorumctl dump-log`: every kind of file, ours and foreign, whole and damaged."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from struct import pack
from uuid import UUID

import pytest

from quorumd.wire.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVersionFeature,
    KRaftVoter,
    KRaftVoterEndpoint,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    ProducerStates,
    ProducerStatesBatch,
    ProducerStatesProducer,
    SnapshotFooter,
    SnapshotHeader,
    UnknownControl,
    encode_control_batch,
    mask_voters,
)
from quorumd.wire.records import Record, build_batch
from tests.quorumd.conftest import Done
from tests.quorumd.running import COMMAND

Run = Callable[..., Done]
TIME_MS = 1_700_000_000_000
UUIDS = [UUID(int=(0x4000 << 64) + number) for number in range(9)]


def voter(number: int, *, uuid: int | None = None, port: int = 9093) -> KRaftVoter:
    return KRaftVoter(
        voter_id=number,
        voter_directory_id=UUIDS[number if uuid is None else uuid],
        endpoints=(KRaftVoterEndpoint(name="PLAINTEXT", host=f"h{number}", port=port),),
        kraft_version_feature=KRaftVersionFeature(max_supported_version=1),
    )


def control(*records: ControlRecord, at: int, epoch: int = 1) -> bytes:
    return encode_control_batch(records, base_offset=at, epoch=epoch, timestamp_ms=TIME_MS)


def data(*values: bytes | None, at: int, epoch: int = 1, codec: int = 0) -> bytes:
    records = [Record(timestamp=TIME_MS, key=b"k", value=value) for value in values]
    return build_batch(records, base_offset=at, epoch=epoch, codec=codec)


def segment(folder: Path, *batches: bytes, base_offset: int = 0) -> Path:
    path = folder / f"{base_offset:020d}.log"
    path.write_bytes(b"".join(batches))
    return path


def leader_change() -> LeaderChange:
    members = tuple(LeaderChangeVoter(voter_id=number) for number in (1, 2, 3))
    return LeaderChange(leader_id=1, voters=members, granting_voters=members[::2])


# --- contents


def test_batches_and_control_records_are_shown(quorumctl: Run, tmp_path: Path) -> None:
    path = segment(
        tmp_path,
        control(leader_change(), KRaftVersion(kraft_version=1), at=0),
        data(b"a", b"b", at=2),
        control(UnknownControl(1002, b"\x01"), at=4, epoch=2),
    )
    done = quorumctl("dump-log", path)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        str(path),
        "  offset 0-1  epoch 1  2 records  122 bytes at 0  2023-11-14T22:13:20.000Z  control",
        "    0  LeaderChange leader 1, voters 1 2 3, granted by 1 3",
        "    1  KRaftVersion 1",
        "  offset 2-3  epoch 1  2 records  79 bytes at 122  2023-11-14T22:13:20.000Z",
        "  offset 4  epoch 2  1 record  73 bytes at 201  2023-11-14T22:13:20.000Z  control",
        "    4  unknown control type 1002, value \\x01",
        "  3 batches, 2 records and 3 control records, offsets 0-4, epochs 1-2, 274 B",
    ]


def test_voters_that_a_restore_has_struck_out_are_said_to_be_former_ones(
    quorumctl: Run, tmp_path: Path
) -> None:
    named = control(KRaftVersion(kraft_version=1), KRaftVoters(voters=(voter(1),)), at=0)
    path = segment(tmp_path, mask_voters(named))
    lines = [line.strip() for line in quorumctl("dump-log", path).out.splitlines()]
    assert lines[2:4] == [
        "0  KRaftVersion of the quorum that this log was restored from",
        "1  KRaftVoters of the quorum that this log was restored from",
    ]


def test_a_voter_set_is_shown_as_the_difference_to_the_one_before(
    quorumctl: Run, tmp_path: Path
) -> None:
    sets = [
        KRaftVoters(voters=(voter(1), voter(2), voter(3)), cluster_id="c1"),
        KRaftVoters(voters=(voter(1), voter(2), voter(3), voter(3, uuid=4))),
        KRaftVoters(voters=(voter(1, port=7), voter(2), voter(3, uuid=4)), target_voters=(1, 2)),
        KRaftVoters(voters=(voter(1, port=7), voter(2), voter(3, uuid=4))),
    ]
    path = segment(tmp_path, *(control(each, at=at) for at, each in enumerate(sets)))
    lines = [line.strip() for line in quorumctl("dump-log", path).out.splitlines()]
    changes = [line for line in lines if re.match(r"ADD|REMOVE|UPDATE|\d  KRaft", line)]
    short = [re.sub(r"AAAAAAAAQAAAAAAAAAA", "", line) for line in changes]
    assert short == [
        "0  KRaftVoters (1, AAQ), (2, AAg), (3, AAw), cluster id c1",
        "ADD (1, AAQ) PLAINTEXT://h1:9093 kraft.version 0..1",
        "ADD (2, AAg) PLAINTEXT://h2:9093 kraft.version 0..1",
        "ADD (3, AAw) PLAINTEXT://h3:9093 kraft.version 0..1",
        "1  KRaftVoters (1, AAQ), (2, AAg), (3, AAw), (3, ABA)",
        "ADD (3, ABA) PLAINTEXT://h3:9093 kraft.version 0..1",
        "2  KRaftVoters (1, AAQ), (2, AAg), (3, ABA), target voters 1 2",
        "REMOVE (3, AAw) PLAINTEXT://h3:9093 kraft.version 0..1",
        "UPDATE (1, AAQ) PLAINTEXT://h1:7 kraft.version 0..1",
        "3  KRaftVoters (1, AAQ), (2, AAg), (3, ABA), unchanged",
    ]


@pytest.mark.parametrize(
    ("codec", "name"), [(0, None), (1, "gzip"), (2, "snappy"), (3, "lz4"), (4, "zstd")]
)
def test_records_are_unpacked_whatever_the_compression(
    quorumctl: Run, tmp_path: Path, codec: int, name: str | None
) -> None:
    path = segment(tmp_path, data(b"first", None, b"\x00third", at=0, codec=codec))
    out = quorumctl("dump-log", "--print-data", path).out
    assert "0  2023-11-14T22:13:20.000Z  key k  value first\n" in out
    assert "value <null>\n" in out
    assert "value \\x00third\n" in out
    assert name is None or f"  {name}\n" in out


def test_everything_is_there_for_programs(quorumctl: Run, tmp_path: Path) -> None:
    voters = KRaftVoters(voters=(voter(1),))
    segment(tmp_path, control(leader_change(), voters, at=0), data(b"a", at=2, codec=4))
    done = quorumctl("dump-log", "--output", "json", "--print-data", tmp_path)
    first, second, file = (json.loads(line) for line in done.out.splitlines())
    assert first["type"] == "batch"
    assert first["is_control"]
    assert [each["type"] for each in first["control_records"]] == ["LeaderChange", "KRaftVoters"]
    assert first["control_records"][1]["voters"][0]["voter_directory_id"].endswith("Q")
    assert [each["kind"] for each in first["control_records"][1]["changes"]] == ["ADD"]
    assert (second["codec"], second["crc_is_valid"], second["base_offset"]) == ("zstd", True, 2)
    assert second["records"][0]["value"] == "a"
    assert (file["type"], file["batches"], file["next_offset"]) == ("file", 2, 3)
    assert (file["tail"]["kind"], file["damage"]) == ("none", [])


def test_a_snapshot_is_read_by_structure(quorumctl: Run, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000012-0000000003.checkpoint"
    path.write_bytes(
        control(SnapshotHeader(last_contained_log_timestamp=TIME_MS), at=0, epoch=3)
        + data(b"a", at=1, epoch=3)
        + control(SnapshotFooter(), at=2, epoch=3)
    )
    out = quorumctl("dump-log", path).out
    assert "snapshot of everything below offset 12, epoch 3" in out
    assert "0  SnapshotHeader last contained log timestamp 2023-11-14T22:13:20.000Z" in out
    assert "2  SnapshotFooter" in out


def test_producer_states_are_shown(quorumctl: Run, tmp_path: Path) -> None:
    batches = (
        ProducerStatesBatch(first_sequence=0, last_sequence=4, base_offset=7, last_offset=11),
        ProducerStatesBatch(first_sequence=5, last_sequence=5, base_offset=15, last_offset=15),
    )
    states = ProducerStates(
        producers=(ProducerStatesProducer(producer_id=9, epoch=2, batches=batches),)
    )
    path = segment(tmp_path, control(states, at=0))
    assert [line.strip() for line in quorumctl("dump-log", path).out.splitlines()][2:4] == [
        "0  ProducerStates of 1 producer",
        "producer 9 epoch 2: sequence 0-4 at offset 7-11, sequence 5-5 at offset 15-15",
    ]
    found = json.loads(quorumctl("dump-log", "-o", "json", path).out.splitlines()[0])
    (record,) = found["control_records"]
    assert record["type"] == "ProducerStates"
    assert record["producers"][0]["batches"][1]["last_offset"] == 15


def test_a_snapshot_without_its_footer_is_damaged(quorumctl: Run, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000012-0000000003.checkpoint"
    path.write_bytes(control(SnapshotHeader(), at=0, epoch=3) + data(b"a", at=1, epoch=3))
    done = quorumctl("dump-log", path)
    assert done.code == 3
    assert "byte 153: the snapshot ends without its footer" in done.err


def test_a_snapshot_that_goes_on_behind_its_footer_is_damaged(
    quorumctl: Run, tmp_path: Path
) -> None:
    path = tmp_path / "00000000000000000012-0000000003.checkpoint"
    path.write_bytes(
        control(SnapshotHeader(), at=0, epoch=3)
        + control(SnapshotFooter(), at=1, epoch=3)
        + data(b"a", at=2, epoch=3)
    )
    done = quorumctl("dump-log", path)
    assert done.code == 3
    assert "the snapshot ends without its footer" in done.err


def test_a_directory_or_the_one_above_is_read_in_order(quorumctl: Run, tmp_path: Path) -> None:
    folder = tmp_path / "__cluster_metadata-0"
    folder.mkdir()
    members = KRaftVoters(voters=(voter(1),))
    (folder / "00000000000000000002-0000000001.checkpoint").write_bytes(
        control(SnapshotHeader(), members, at=0) + control(SnapshotFooter(), at=2)
    )
    segment(folder, control(members, at=2), base_offset=2)
    segment(folder, data(b"a", at=3), base_offset=3)
    (tmp_path / "meta.properties").write_text("version=1\n")
    above = quorumctl("dump-log", tmp_path)
    assert above.code == 0
    assert above == quorumctl("dump-log", folder)
    names = [Path(line).name for line in above.out.splitlines() if not line.startswith(" ")]
    assert names == [
        "00000000000000000002-0000000001.checkpoint",
        "00000000000000000002.log",
        "00000000000000000003.log",
    ]
    # The snapshot already had the voters that the log repeats.
    assert "2  KRaftVoters (1, AAAAAAAAQAAAAAAAAAAAAQ), unchanged" in above.out


def test_zeros_written_ahead_are_no_damage(quorumctl: Run, tmp_path: Path) -> None:
    path = segment(tmp_path, data(b"a", at=0), bytes(4 << 20))
    done = quorumctl("dump-log", path)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("epoch 1, 70 B, then 4.0 MiB of zeros written ahead\n")


def test_a_summary_is_one_line_for_each_file(quorumctl: Run, tmp_path: Path) -> None:
    segment(tmp_path, *(data(b"a", at=at) for at in range(1000)))
    done = quorumctl("dump-log", "--summary", tmp_path)
    assert done.out.splitlines()[1:] == [
        "  1,000 batches, 1,000 records and 0 control records, offsets 0-999, epoch 1, 68.4 KiB"
    ]


# --- damage


def test_a_flipped_bit_is_found_and_what_follows_is_still_shown(
    quorumctl: Run, tmp_path: Path
) -> None:
    batches = [data(b"value %d" % at, at=at) for at in range(3)]
    content = bytearray(b"".join(batches))
    content[len(batches[0]) + 70] ^= 1
    path = segment(tmp_path, bytes(content))
    done = quorumctl("dump-log", "--print-data", path)
    assert done.code == 3
    position = len(batches[0])
    assert f"byte {position}, offset 1: the CRC does not match the contents" in done.err
    assert "value value 0" in done.out
    assert "value value 1" not in done.out
    assert "value value 2" in done.out


@pytest.mark.parametrize("cut", [1, 30, 60])
def test_a_cut_last_batch_is_reported_with_its_position(
    quorumctl: Run, tmp_path: Path, cut: int
) -> None:
    path = segment(tmp_path, data(b"a", at=0), data(b"b", at=1)[:-cut])
    done = quorumctl("dump-log", path)
    assert done.code == 3
    assert "byte 70, after offset 0: " in done.err
    assert "an unfinished last write" in done.err
    assert "offset 0  epoch 1" in done.out


def test_a_closed_segment_must_not_end_in_an_unfinished_write(
    quorumctl: Run, tmp_path: Path
) -> None:
    closed = segment(tmp_path, data(b"a", at=0), data(b"b", at=1)[:-9])
    segment(tmp_path, data(b"c", at=2), base_offset=2)
    for path in (tmp_path, closed):
        done = quorumctl("dump-log", path)
        assert done.code == 3
        assert "byte 70, after offset 0: " in done.err
        assert "an unfinished last write" not in done.err


def test_garbage_in_the_middle_is_damage(quorumctl: Run, tmp_path: Path) -> None:
    path = segment(tmp_path, data(b"a", at=0), b"\xde\xad" * 50, data(b"b", at=2))
    done = quorumctl("dump-log", path)
    assert done.code == 3
    assert "byte 70, after offset 0: " in done.err
    assert "a valid batch follows at byte 170" in done.err


@pytest.mark.parametrize(
    ("batches", "complaint"),
    [
        (
            [data(b"a", at=5), data(b"b", at=5)],
            "byte 70, offset 5: a batch with offset 5 where 6 must follow",
        ),
        (
            [data(b"a", at=5), data(b"b", at=7), data(b"c", at=8)],
            "byte 70, offset 7: a batch with offset 7 where 6 must follow",
        ),
        (
            [data(b"a", at=5, epoch=3), data(b"b", at=6, epoch=2)],
            "byte 70, offset 6: a batch of epoch 2 after one of epoch 3",
        ),
        ([data(b"a", at=3)], "byte 0, offset 3: a batch with offset 3 where 5 must follow"),
        ([data(b"a", at=7)], "byte 0, offset 7: a batch with offset 7 where 5 must follow"),
    ],
    ids=["twice", "a gap", "an epoch that falls", "below the file's name", "above the file's name"],
)
def test_what_is_out_of_order_is_damage(
    quorumctl: Run, tmp_path: Path, batches: list[bytes], complaint: str
) -> None:
    done = quorumctl("dump-log", segment(tmp_path, *batches, base_offset=5))
    assert done.code == 3
    assert complaint in done.err
    assert done.err.count("byte 70, ") + done.err.count("byte 0, ") == 1


def test_a_control_record_that_makes_no_sense_is_damage(quorumctl: Run, tmp_path: Path) -> None:
    batch = build_batch([Record(key=b"\0\0\0\2", value=b"\0")], is_control=True)
    done = quorumctl("dump-log", segment(tmp_path, batch))
    assert done.code == 3
    assert "byte 0, offset 0: a control record that can't be read" in done.err


def test_a_batch_that_was_sent_unreadable_is_shown_but_no_damage(
    quorumctl: Run, tmp_path: Path
) -> None:
    from crc32c import crc32c

    batch = bytearray(data(b"a", at=0))
    batch[22] |= 1
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    done = quorumctl("dump-log", "--print-data", segment(tmp_path, bytes(batch)))
    assert done.code == 0
    assert "! does not unpack to its records, so readers see none" in done.out


# --- other files


def test_an_empty_segment_has_no_batches(quorumctl: Run, tmp_path: Path) -> None:
    path = segment(tmp_path)
    assert quorumctl("dump-log", path) == Done(0, f"{path}\n  no batches\n", "")


@pytest.mark.parametrize("content", [b"hello\n" * 100, b"short", b"\x89PNG\r\n\x1a\n" + b"x" * 200])
def test_a_file_of_another_kind_is_refused(quorumctl: Run, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    done = quorumctl("dump-log", path)
    assert (done.code, done.out) == (1, "")
    assert f"{path}: is no log file: it does not begin with a record batch" in done.err


def test_an_empty_file_of_any_name_holds_no_batches(quorumctl: Run, tmp_path: Path) -> None:
    path = tmp_path / "copy-of-a-segment"
    path.write_bytes(b"")
    done = quorumctl("dump-log", path)
    assert (done.code, done.err) == (0, "")
    assert "no batches" in done.out


def test_a_log_of_something_else_beside_a_segment_is_no_later_segment(
    quorumctl: Run, tmp_path: Path
) -> None:
    path = segment(tmp_path, data(b"a", at=0), data(b"b", at=1)[:30])
    (tmp_path / "server.log").write_text("started")
    done = quorumctl("dump-log", path)
    assert done.code == 3
    assert "an unfinished last write" in done.err


def test_a_segment_full_of_text_is_damaged(quorumctl: Run, tmp_path: Path) -> None:
    done = quorumctl("dump-log", segment(tmp_path, b"hello\n" * 100))
    assert done.code == 3
    assert "byte 0: 600 bytes are no batch (magic is" in done.err


def test_one_bad_path_does_not_hide_the_others(quorumctl: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    good = segment(tmp_path, data(b"a", at=0))
    done = quorumctl("dump-log", tmp_path / "missing", tmp_path / "empty", good)
    assert done.code == 1
    assert f"{tmp_path / 'missing'}: there is no such file" in done.err
    assert f"{tmp_path / 'empty'}: no segments" in done.err
    assert str(good) in done.out


def test_indexes_are_listed_without_the_zeros_behind(quorumctl: Run, tmp_path: Path) -> None:
    offsets = tmp_path / "00000000000000000100.index"
    offsets.write_bytes(pack(">iiii", 5, 4100, 9, 8300) + bytes(80))
    times = tmp_path / "00000000000000000100.timeindex"
    times.write_bytes(pack(">qi", TIME_MS, 5))
    done = quorumctl("dump-log", offsets, times)
    assert done.code == 0
    assert done.out.splitlines() == [
        str(offsets),
        "  offset 105  byte 4100",
        "  offset 109  byte 8300",
        "  2 entries, 96 B",
        str(times),
        "  time 2023-11-14T22:13:20.000Z  offset 105",
        "  1 entry, 12 B",
    ]
    found = json.loads(quorumctl("dump-log", "-o", "json", offsets).out)
    assert found["entries"][1] == {"offset": 109, "position": 8300}


def test_an_index_that_goes_back_is_damage(quorumctl: Run, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.index"
    path.write_bytes(pack(">iiii", 9, 4100, 5, 8300))
    done = quorumctl("dump-log", path)
    assert done.code == 3
    assert "the entry at byte 8 is below the one before it" in done.err


def test_on_a_terminal_a_large_file_shows_a_progress_bar(tmp_path: Path) -> None:
    value = b"x" * 500_000
    path = segment(tmp_path, *(data(value, at=at) for at in range(40)))
    terminal, other_end = pty.openpty()
    process = subprocess.Popen(
        [str(COMMAND), "dump-log", str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=other_end,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(other_end)
    shown = b""
    with suppress(OSError):
        while part := os.read(terminal, 65536):
            shown += part
    os.close(terminal)
    assert process.wait(20) == 0
    assert b"reading" in shown
    assert b"MiB" in shown
