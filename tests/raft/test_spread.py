"""Who gets new records first: as many voters as a commit needs, the others a moment later."""

from __future__ import annotations

from quorumd.raft.effects import FetchReply, SendReply
from quorumd.raft.events import AppendRequested
from quorumd.raft.parked_fetches import SPREAD_DELAY_MS, UNPACED_REPLICAS_MAX
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


def with_observers(count: int) -> tuple[Bench, list[ReplicaKey]]:
    """A leader of three voters at whose log end so many observers wait; then a record comes."""
    bench = harness.leader(3)
    end = bench.node.core.log.end
    observers = [harness.key(100 + number) for number in range(count)]
    for observer in observers:
        bench.fetch(observer, end.offset, end.epoch, high_watermark=end.offset)
    bench.step(AppendRequested(1, 1))
    return bench, observers


def answers_of(bench: Bench, after_ms: int) -> int:
    return len(answered_with_records(bench.wait(after_ms)))


def test_one_of_many_observers_waits_though_there_is_something_new() -> None:
    bench, observers = with_observers(40)
    assert answers_of(bench, 100) == 40
    state = bench.node.core.state
    assert isinstance(state, Leader)
    pause_ms = len(state.progress)
    assert pause_ms >= 40
    end = bench.node.core.log.end
    for observer in observers:
        assert bench.fetch(observer, end.offset - 1, end.epoch, high_watermark=0) is None
    bench.step(AppendRequested(2, 1))
    assert answers_of(bench, pause_ms - 1) == 0
    assert answers_of(bench, 1) == 40
    voter = bench.node.core.other_voters()[0]
    answer = bench.fetch(voter, end.offset - 1, end.epoch)
    assert answer is not None
    assert answer.read_from == end.offset - 1


def test_few_observers_and_those_without_id_are_answered_at_once() -> None:
    few = UNPACED_REPLICAS_MAX - 2
    bench, observers = with_observers(few)
    assert answers_of(bench, SPREAD_DELAY_MS) == few
    end = bench.node.core.log.end
    assert bench.fetch(observers[0], end.offset - 1, end.epoch) is not None
    bench.fetch(harness.key(99), end.offset - 1, end.epoch)
    assert bench.fetch(observers[0], end.offset - 1, end.epoch) is None, "one more is too many"
    assert bench.fetch(None, end.offset - 1, end.epoch) is not None


def test_no_observer_waits_longer_than_it_wants_to() -> None:
    bench, observers = with_observers(40)
    end = bench.node.core.log.end
    assert bench.fetch(observers[0], end.offset - 1, end.epoch, max_wait_ms=0) is not None
    assert bench.fetch(observers[1], end.offset - 1, end.epoch, max_wait_ms=3) is None
    assert answers_of(bench, 2) == 0
    assert answers_of(bench, 1) == 1


def test_new_records_do_not_make_an_observer_wait_longer_than_it_wants_to() -> None:
    bench, observers = with_observers(40)
    answers_of(bench, 100)
    end = bench.node.core.log.end
    assert bench.fetch(observers[0], *end, max_wait_ms=SPREAD_DELAY_MS + 5) is None
    bench.step(AppendRequested(2, 1))
    assert answers_of(bench, SPREAD_DELAY_MS + 4) == 0
    assert answers_of(bench, 1) == 1


def test_an_observer_that_lacks_records_gets_them_though_no_more_come() -> None:
    bench, observers = with_observers(40)
    answers_of(bench, 100)
    state = bench.node.core.state
    assert isinstance(state, Leader)
    pause_ms = len(state.progress)
    end = bench.node.core.log.end
    lacks, has = observers[:2]
    assert bench.fetch(lacks, end.offset - 1, end.epoch) is None
    assert bench.fetch(has, end.offset, end.epoch) is None
    assert answers_of(bench, pause_ms - 1) == 0
    assert answers_of(bench, 1) == 1
    assert parked(bench) == [has]


def test_what_is_committed_does_not_hurry_many_observers() -> None:
    bench, observers = with_observers(40)
    answers_of(bench, 100)
    state = bench.node.core.state
    assert isinstance(state, Leader)
    pause_ms = len(state.progress)
    end = bench.node.core.log.end
    for observer in observers:
        assert bench.fetch(observer, end.offset, end.epoch, high_watermark=0) is None
    bench.sync()
    bench.fetch(bench.node.core.other_voters()[0], end.offset, end.epoch)
    assert bench.node.high_watermark == end.offset
    assert set(observers) <= set(parked(bench))
    bench.wait(pause_ms - 1)
    assert set(observers) <= set(parked(bench))
    bench.wait(1)
    assert not set(observers) & set(parked(bench))
