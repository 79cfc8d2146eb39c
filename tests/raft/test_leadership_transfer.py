"""Handing leadership over at its edges: to whom, until when, and what is said of it."""

from __future__ import annotations

from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import EndQuorumEpoch
from quorumd.raft.events import AppendRequested, TimerFired
from quorumd.raft.log_view import VoterEntry
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey
from tests.raft.changes import fetch_all, last_answer, leading, refused, transfer
from tests.raft.harness import CLUSTER, Bench, key, keyed_set, log_of
from tests.raft.harness import leader as bare_leader

LONG_AGO = ("ELIGIBLE_LEADERS_NOT_AVAILABLE",)


def handed_to(bench: Bench) -> object:
    """Whom a leader that resigned names first."""
    return successors(bench)[0]


def successors(bench: Bench) -> tuple[ReplicaKey, ...]:
    assert bench.role is Role.RESIGNED
    request = bench.requests(EndQuorumEpoch)[0].request
    assert isinstance(request, EndQuorumEpoch)
    return request.successors


def test_any_voter_will_do_if_one_fetches() -> None:
    bench = leading(5)
    bench.wait(1500)
    fetch_all(bench, key(4), key(5))
    bench.wait(1000)
    bench.step(AppendRequested(1, 1))
    assert transfer(bench, None) is None
    fetch_all(bench, key(4), key(5))
    assert last_answer(bench).error is None
    assert handed_to(bench) == key(4)


def test_who_is_asked_for_is_the_only_successor_that_is_announced() -> None:
    """At another site it hears of it when the next one in a list would have been elected already."""
    for to, announced in ((key(5), 1), (None, 4)):
        bench = leading(5)
        fetch_all(bench, key(4), key(5))
        reply = transfer(bench, to)
        assert reply is not None
        assert reply.error is None
        assert len(successors(bench)) == announced
        assert to in (None, handed_to(bench))


def test_a_voter_may_be_named_by_its_id_alone_unless_two_disks_have_it() -> None:
    bench = leading()
    bench.step(AppendRequested(1, 1))
    assert transfer(bench, ReplicaKey(3)) is None
    assert bench.node.status().pending_changes[0].key == key(3)
    both = keyed_set(key(1), key(2), key(3), key(3, disk=1))
    log = log_of(1, 1, 2)
    log.voter_entries.append(VoterEntry(1, VotersRecord(both, CLUSTER)))
    bench = bare_leader(log=log)
    assert refused(transfer(bench, ReplicaKey(3)))[0] == "VOTER_NOT_FOUND"


def test_why_nobody_can_take_over_is_said() -> None:
    bench = leading()
    assert refused(transfer(bench, key(9)))[1].startswith(f"{key(9)} is not one voter: the voters")
    bench.wait(2001)
    text = refused(transfer(bench, key(3)))[1]
    assert text == f"none of {key(3)} has fetched lately: is it running?"
    text = refused(transfer(leading(1), None))[1]
    assert text == f"{key(1)} is the only voter: add another one first"


def test_a_transfer_ends_when_its_time_is_up_or_the_next_time_that_anything_happens() -> None:
    for timeout_ms, waited_ms, late_ms in ((300, 300, 0), (300, 307, 7), (5000, 1000, 0)):
        bench = leading()
        bench.step(AppendRequested(1, 1))
        assert transfer(bench, key(3), timeout_ms=timeout_ms) is None
        bench.step(TimerFired(), after_ms=waited_ms - late_ms - 1)
        assert bench.node.append_refusal is not None
        bench.step(TimerFired(), after_ms=late_ms + 1)
        error, text = refused(last_answer(bench))
        assert error == "REQUEST_TIMED_OUT"
        assert text == f"{key(3)} had not everything after {waited_ms} ms. Repeat it"
    bench = leading()
    bench.step(AppendRequested(1, 1))
    assert transfer(bench, None) is None
    bench.wait(1000)
    assert "no voter had everything" in refused(last_answer(bench))[1]


def test_a_successor_that_has_everything_but_fell_silent_does_not_get_the_leadership() -> None:
    """Until the leader's own disk has the last record nothing of it is committed."""
    bench = leading(5, fetch_timeout_ms=500, election_timeout_ms=5000)
    bench.step(AppendRequested(1, 1))
    end = bench.node.core.log.end
    assert transfer(bench, None, timeout_ms=5000) is None
    bench.fetch(key(2), *end)
    bench.wait(501)
    assert bench.role is Role.LEADER
    bench.fetch(key(4), *end)
    bench.sync()
    assert handed_to(bench) == key(4)


def test_to_whom_leadership_is_handed_is_said_and_answered_once() -> None:
    bench = leading()
    assert refused(transfer(bench, key(3))) == (None, "")
    assert f"leadership is handed to {key(3)}" in bench.reports
    assert handed_to(bench) == key(3)


def test_a_successor_that_is_ready_when_the_time_ends_gets_the_leadership() -> None:
    bench = leading()
    bench.step(AppendRequested(1, 1))
    bench.sync()
    assert transfer(bench, key(3), timeout_ms=300) is None
    bench.now_ms += 300
    bench.fetch(key(3), *bench.node.core.log.end)
    assert last_answer(bench).error is None
    assert handed_to(bench) == key(3)


def test_a_successor_that_lacks_what_is_committed_does_not_hold_the_leader_up_beyond_the_time() -> (
    None
):
    bench = leading()
    bench.step(AppendRequested(1, 1))
    assert transfer(bench, key(3), timeout_ms=300) is None
    fetch_all(bench, key(2))
    assert bench.node.high_watermark == bench.node.log_end_offset
    bench.step(TimerFired(), after_ms=300)
    assert refused(last_answer(bench))[0] == "REQUEST_TIMED_OUT"
    assert bench.role is Role.LEADER
