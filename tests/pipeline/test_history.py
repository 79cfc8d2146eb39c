"""Leaders and voters over time, of control records alone."""

from __future__ import annotations

from quorumd.pipeline.parse import ChunkOrigin, parse
from quorumd.pipeline.tables.history import ControlRow, LeadershipHistory, extend_history
from quorumd.pipeline.tables.origin import control_rows
from quorumd.wire.control_records import LeaderChange, LeaderChangeVoter
from tests.pipeline.written import Log, voter_set

NOTHING = LeadershipHistory([], [])


def rows_of(log: Log) -> list[ControlRow]:
    parsed = parse("log_records", bytes(log.data), 0, log.end, ChunkOrigin())
    return [row for rows in parsed for row in control_rows(rows)]


def changes(history: LeadershipHistory) -> list[tuple[int, str, int]]:
    return [(row["offset"], row["change"], row["voter_id"]) for row in history.voter_sets]


def leader_change(leader: int, *voters: int) -> LeaderChange:
    keys = tuple(LeaderChangeVoter(voter_id=each) for each in voters)
    return LeaderChange(version=0, leader_id=leader, voters=keys, granting_voters=keys)


def test_a_leader_that_writes_the_voters_down_beside_its_own_record_has_configured_none() -> None:
    log = Log()
    log.control(leader_change(1, 1, 2), voter_set((1, 1), (2, 2)))
    assert changes(extend_history(NOTHING, rows_of(log))) == [(1, "ADD", 1), (1, "ADD", 2)]


def test_those_that_go_are_named_before_those_that_come() -> None:
    log = Log()
    log.elect(1, (2, 3))
    log.control(voter_set((2, 2), (3, 3)))
    log.control(voter_set((1, 1), (3, 3)))
    found = changes(extend_history(NOTHING, rows_of(log)))
    assert found[-2:] == [(2, "REMOVE", 2), (2, "ADD", 1)]


def test_each_leader_leads_until_the_next_one_whatever_the_order_of_the_records() -> None:
    log = Log()
    for leader in (1, 2, 3):
        log.elect(leader, (1, 2, 3))
    first, *others = rows_of(log)
    before = extend_history(NOTHING, [first])
    assert [row["to_offset"] for row in before.leadership] == [None]
    history = extend_history(before, others[::-1])
    assert [
        (row["leader_id"], row["from_offset"], row["to_offset"]) for row in history.leadership
    ] == [
        (1, 0, 1),
        (2, 1, 2),
        (3, 2, None),
    ]


def test_of_those_that_come_and_go_each_is_named_in_the_order_of_the_ids() -> None:
    log = Log()
    log.elect(1, (1, 5))
    log.control(voter_set((1, 1), (5, 5)))
    log.control(voter_set((4, 4), (2, 2), (3, 3)))
    assert changes(extend_history(NOTHING, rows_of(log)))[-5:] == [
        (2, "REMOVE", 1),
        (2, "REMOVE", 5),
        (2, "ADD", 2),
        (2, "ADD", 3),
        (2, "ADD", 4),
    ]
