"""The verdict on chaos runs names what it is there for, in histories and logs that were made up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from chaos.history import ACKNOWLEDGED, END, FAILED, INVOKED, READ, SESSION
from chaos.verdict import Verdict, check_run
from quorumd.storage.layout import PARTITION_DIRECTORY, log_path
from quorumd.wire.records import Record, build_batch

SOUND = [b"a-write/0", b"b-write/0", b"a-write/1"]
A = [(INVOKED, 10, 0), (ACKNOWLEDGED, 30, 0, 0), (INVOKED, 40, 1), (ACKNOWLEDGED, 90, 1, 2)]
B = [(INVOKED, 20, 0), (ACKNOWLEDGED, 50, 0, 1)]
R = [
    (END, 60, 55, 0, 2),
    (SESSION, 61, 0),
    (READ, 62, [(0, "a-write/0"), (1, "b-write/0")]),
    (READ, 95, [(2, "a-write/1")]),
]
Line = tuple[object, ...]


def checked(
    folder: Path,
    logs: Sequence[Sequence[bytes]] = (SOUND, SOUND),
    a: Sequence[Line] = A,
    b: Sequence[Line] = B,
    r: Sequence[Line] = R,
    starts: Sequence[int] = (0, 0),
) -> Verdict:
    """Times are given in milliseconds; of each log what is below its start was deleted."""
    folder.mkdir(exist_ok=True)
    histories = []
    for name, lines in ("a-write", a), ("b-write", b), ("r-read", r):
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(in_ns(line)) + "\n" for line in lines))
        histories.append(path)
    storages = []
    for number, values in enumerate(logs):
        storage = folder / f"storage-{number}"
        directory = storage / PARTITION_DIRECTORY
        directory.mkdir(parents=True)
        batches = [
            build_batch([Record(key=None, value=value)], base_offset=offset, epoch=1)
            for offset, value in enumerate(values)
        ]
        start = starts[number]
        log_path(directory, start).write_bytes(b"".join(batches[start:]))
        storages.append(storage)
    return check_run(histories, storages)


def in_ns(line: Line) -> list[object]:
    kind, at, *rest = line
    assert isinstance(at, int)
    if kind == END:
        begun, *rest = rest
        assert isinstance(begun, int)
        rest = [begun * 1_000_000, *rest]
    return [kind, at * 1_000_000, *rest]


def only(verdict: Verdict) -> str:
    (violation,) = verdict.violations
    return violation


def test_a_sound_run(tmp_path: Path) -> None:
    verdict = checked(tmp_path)
    assert verdict.violations == []
    assert verdict.records == 3
    assert verdict.clients["a-write"].acknowledged == 2
    assert verdict.clients["r-read"].read == 3
    assert verdict.gaps[0] == (40_000_000, 50_001_000)


def test_what_nodes_have_deleted_is_checked_by_what_readers_saw(tmp_path: Path) -> None:
    verdict = checked(tmp_path / "1", starts=(1, 2))
    assert (verdict.violations, verdict.records, verdict.unchecked) == ([], 3, 0)
    b = [(INVOKED, 20, 0), (ACKNOWLEDGED, 50, 0, 0)]
    assert "gets offset 0 for" in str(checked(tmp_path / "2", b=b, starts=(1, 2)).violations)
    assert "differ from record 0" in str(
        checked(tmp_path / "3", [SOUND, [*SOUND[:2], b"x"]], starts=(1, 2)).violations
    )


def test_what_nobody_can_know_is_not_checked(tmp_path: Path) -> None:
    r = [(SESSION, 61, 1), (READ, 95, [(2, "a-write/1")])]
    verdict = checked(tmp_path, starts=(2, 2), r=r)
    assert (verdict.violations, verdict.records, verdict.unchecked) == ([], 1, 2)
    again = [*r, (READ, 96, [(1, "b-write/0")])]
    assert "prefixes" in str(checked(tmp_path / "2", r=again).violations)


def test_a_failed_append_may_be_there_or_not(tmp_path: Path) -> None:
    a = [*A, (INVOKED, 91, 2), (FAILED, 92, 2, "Timeout: late"), (INVOKED, 93, 3)]
    assert checked(tmp_path / "1", a=a).violations == []
    there = [[*SOUND, b"a-write/2"]] * 2
    assert checked(tmp_path / "2", there, a=a).violations == []


def test_an_acknowledged_record_that_is_gone(tmp_path: Path) -> None:
    found = checked(tmp_path, [SOUND[:2]] * 2, r=R[:3]).violations
    assert any("0 times in the committed log" in each for each in found)


def test_a_record_that_is_there_twice(tmp_path: Path) -> None:
    assert "2 times" in only(checked(tmp_path, [[*SOUND, SOUND[1]]] * 2))


def test_an_acknowledgement_with_a_wrong_offset(tmp_path: Path) -> None:
    b = [(INVOKED, 20, 0), (ACKNOWLEDGED, 50, 0, 2)]
    assert "gets offset 2" in only(checked(tmp_path, b=b, r=R[1:]))


def test_an_order_that_no_moments_explain(tmp_path: Path) -> None:
    b = [(INVOKED, 35, 0), (ACKNOWLEDGED, 50, 0, 0)]
    a = [(INVOKED, 10, 0), (ACKNOWLEDGED, 30, 0, 1), *A[2:]]
    log = [SOUND[1], SOUND[0], SOUND[2]]
    r = [(SESSION, 61, 0)]
    assert "linearizable" in only(checked(tmp_path, [log, log], a=a, b=b, r=r))


@pytest.mark.parametrize(
    "records", [[(0, "b-write/0")], [(0, "a-write/0"), (2, "a-write/1")], [(0, "x")]]
)
def test_a_read_of_what_is_not_committed(tmp_path: Path, records: list[tuple[int, str]]) -> None:
    assert "asked for 0" in only(checked(tmp_path, r=[(SESSION, 61, 0), (READ, 62, records)]))


def test_an_end_below_what_was_known(tmp_path: Path) -> None:
    assert "is told 1, when 2 was known" in only(checked(tmp_path, r=[(END, 60, 55, 0, 1)]))
    # It was asked before the acknowledgement came.
    assert checked(tmp_path / "asked", r=[(END, 60, 45, 0, 1)]).violations == []


def test_replicas_that_differ(tmp_path: Path) -> None:
    assert "differ from record 2 on" in only(checked(tmp_path, [SOUND, SOUND[:2]]))
