"""Who gets new records first: as many voters as a commit needs, the others a moment later."""

from __future__ import annotations

from quorumd.raft.effects import FetchReply, SendReply
from quorumd.raft.events import AppendRequested
from quorumd.raft.parked_fetches import SPREAD_DELAY_MS
from quorumd.raft.roles import Leader
from quorumd.raft.types import ReplicaKey
from tests.raft import harness
from tests.raft.harness import Bench


def with_everybody_parked(size: int = 3) -> Bench:
    """A leader whose other voters all wait at its log end, in the order of their ids."""
    bench = harness.leader(size)
    end = bench.node.core.log.end
    for key in bench.node.core.other_voters():
        bench.fetch(key, end.offset, end.epoch, high_watermark=end.offset)
    # What was committed by these fetches is told first, so that only records are missing below.
    bench.wait(50)
    for key in bench.node.core.other_voters():
        bench.fetch(key, end.offset, end.epoch, high_watermark=end.offset)
    return bench


def answered_with_records(effects: list[object]) -> list[int]:
    """The numbers of the fetches that got records."""
    return [
        effect.reply_to
        for effect in effects
        if isinstance(effect, SendReply)
        and isinstance(effect.reply, FetchReply)
        and effect.reply.read_from is not None
    ]


def parked(bench: Bench) -> list[ReplicaKey | None]:
    state = bench.node.core.state
    assert isinstance(state, Leader)
    return [fetch.replica for fetch in state.parked.values()]


def test_records_go_at_once_to_as_many_voters_as_a_commit_needs() -> None:
    for size, needed in ((2, 1), (3, 1), (5, 2)):
        bench = with_everybody_parked(size)
        waiting = parked(bench)
        effects = bench.step(AppendRequested(1, 1))
        assert len(answered_with_records(effects)) == needed
        assert parked(bench) == waiting[:-needed], "those that came back last are served first"


def test_the_others_get_the_records_a_moment_later() -> None:
    bench = with_everybody_parked()
    bench.step(AppendRequested(1, 1))
    assert bench.node.next_deadline_ms() == bench.now_ms + SPREAD_DELAY_MS
    assert len(answered_with_records(bench.wait(SPREAD_DELAY_MS))) == 1
    assert parked(bench) == []


def test_the_next_records_find_a_voter_that_is_free() -> None:
    bench = with_everybody_parked()
    second, first = parked(bench)
    bench.step(AppendRequested(1, 1))
    assert parked(bench) == [second]
    effects = bench.step(AppendRequested(2, 1))
    assert len(answered_with_records(effects)) == 1
    assert parked(bench) == []
    assert first is not None
    end = bench.node.core.log.end
    bench.sync()
    bench.fetch(first, end.offset - 1, end.epoch)
    assert bench.node.high_watermark == end.offset - 1


def test_an_observer_gets_the_records_a_moment_later_however_busy_the_leader_is() -> None:
    bench = with_everybody_parked()
    end = bench.node.core.log.end
    observer = harness.key(9)
    reply = bench._next_reply + 1
    bench.fetch(observer, end.offset, end.epoch, high_watermark=end.offset)
    served: list[int] = []
    for token in range(1, SPREAD_DELAY_MS + 2):
        served += answered_with_records(bench.step(AppendRequested(token, 1), after_ms=1))
    assert reply in served
