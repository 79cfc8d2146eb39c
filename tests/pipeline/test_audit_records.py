"""Replicas whose batches have other boundaries: the records count, and only there they are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from quorumd.pipeline.audit import AuditFinding, FindingKind, audit
from quorumd.pipeline.audit import compare as compare_module
from quorumd.pipeline.audit.scan import RangeTask
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import PARTITION_DIRECTORY, log_path
from quorumd.wire.records import Record, build_batch
from tests.server.snapshot_logs import build
from tests.support.claimed_offsets import gzip_claiming

COUNT = 240


def records(changed: int | None = None) -> list[Record]:
    return [
        Record(
            timestamp=1_000 + i, key=b"k%d" % i, value=b"changed" if i == changed else b"v%d" % i
        )
        for i in range(COUNT)
    ]


def write_log(folder: Path, contents: Sequence[Record], sizes: Sequence[int]) -> Path:
    """One segment; batch by batch with so many records, over and over."""
    directory = folder / PARTITION_DIRECTORY
    directory.mkdir(parents=True)
    data, at, number = b"", 0, 0
    while at < len(contents):
        some = contents[at : at + sizes[number % len(sizes)]]
        data += build_batch(some, base_offset=at, epoch=1 + at // 120)
        at += len(some)
        number += 1
    log_path(directory, 0).write_bytes(data)
    return folder


def look(paths: list[Path], range_bytes: int = 900) -> list[AuditFinding]:
    return audit(paths, range_bytes=range_bytes).findings


@pytest.mark.parametrize("range_bytes", [1, 700, 1 << 20])
@pytest.mark.parametrize("sizes", [(5,), (10, 20), (30,), (120,)])
def test_the_same_records_in_other_batches_are_the_same(
    tmp_path: Path, sizes: Sequence[int], range_bytes: int
) -> None:
    paths = [
        write_log(tmp_path / "a", records(), (10,)),
        write_log(tmp_path / "b", records(), sizes),
        write_log(tmp_path / "c", records(), (10,)),
    ]
    assert look(paths, range_bytes) == []


@pytest.mark.parametrize("range_bytes", [1, 700, 1 << 20])
def test_a_record_that_differs_in_other_batches_is_named(tmp_path: Path, range_bytes: int) -> None:
    paths = [
        write_log(tmp_path / "a", records(), (10,)),
        write_log(tmp_path / "b", records(changed=47), (15, 5)),
        write_log(tmp_path / "c", records(), (10,)),
    ]
    (finding,) = look(paths, range_bytes)
    assert finding.kind is FindingKind.DIFFERENT_RECORDS
    assert finding.replicas == (str(paths[1]),)
    assert finding.against == (str(paths[0]), str(paths[2]))
    assert (finding.offset, finding.end_offset) == (40, 50)


def test_records_are_not_looked_at_where_batches_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    real = compare_module.parse

    def counting(*arguments: object) -> object:
        asked.append(arguments[2:4])  # type: ignore[arg-type]  # the offsets that are wanted
        return real(*arguments)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(compare_module, "parse", counting)
    same = [write_log(tmp_path / name, records(), (10,)) for name in ("a", "b")]
    assert look(same) == []
    assert asked == []
    split = [5 if i in (8, 9) else 10 for i in range(25)]
    other = write_log(tmp_path / "c", records(), split)
    assert look([*same, other]) == []
    assert set(asked) == {(80, 90)}


def test_a_snapshot_of_compressed_records_that_claim_other_offsets_is_sound(tmp_path: Path) -> None:
    folder = write_log(tmp_path / "a", records(), (10,))
    directory = folder / PARTITION_DIRECTORY
    odd = gzip_claiming((0, 100_000, 1, -7), base_offset=COUNT, epoch=2)
    with log_path(directory, 0).open("ab") as file:
        file.write(odd)
    build(RealFileSystem(), COUNT + 4, directory=directory, complete=True)
    assert look([folder]) == []


def test_a_large_batch_that_others_have_in_small_ones_is_one_region_to_its_end() -> None:
    task = RangeTask(0, 12, (), ((0, 12), (0, 12)), ("one", "two"))
    large = [(0, 10, 1, 1, 1), (10, 12, 1, 1, 9)]
    small = [(0, 3, 1, 1, 2), (3, 5, 1, 1, 3), (5, 10, 1, 1, 4), (10, 12, 1, 1, 9)]
    assert compare_module._regions(task, {0: large, 1: small}) == [(0, 10)]
    small[2:3] = []
    assert compare_module._regions(task, {0: large, 1: small}) == [(0, 10)]
