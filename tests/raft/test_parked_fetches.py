"""When a fetch that waits at a leader is answered."""

from __future__ import annotations

import pytest

from quorumd.raft.effects import AppendClient, AppendControl, FetchReply, SendReply
from quorumd.raft.events import AppendRequested, TimerFired
from quorumd.raft.parked_fetches import ANNOUNCE_DELAY_MS
from quorumd.raft.types import SnapshotId
from tests.raft.changes import leading, remove
from tests.raft.harness import Bench, key
from tests.raft.test_bootstrap import first_leader


def replies(bench: Bench) -> list[int]:
    """Requests that were answered in the last step, by number."""
    return [
        effect.reply_to for effect in bench.find(SendReply) if isinstance(effect.reply, FetchReply)
    ]


def settled(size: int = 3) -> Bench:
    """A leader at which no fetch waits."""
    bench = leading(size)
    bench.wait(ANNOUNCE_DELAY_MS)
    return bench


def park(bench: Bench, replica: int, **more: int) -> None:
    assert bench.fetch(key(replica), *bench.node.core.log.end, **more) is None


@pytest.mark.parametrize("waits_ms", [(200, 100), (100, 200), (100, 300, 200), (300, 100, 200)])
def test_each_fetch_waits_its_own_time(waits_ms: tuple[int, ...]) -> None:
    bench = settled(5)
    first = bench._next_reply + 1
    for replica, wait_ms in enumerate(waits_ms, 2):
        park(bench, replica, max_wait_ms=wait_ms, high_watermark=4)
    begin_ms = bench.now_ms
    for wait_ms in sorted(waits_ms):
        bench.wait(begin_ms + wait_ms - 1 - bench.now_ms)
        assert replies(bench) == []
        bench.wait(1)
        assert replies(bench) == [first + waits_ms.index(wait_ms)]


def test_fetches_without_an_id_wait_beside_each_other() -> None:
    bench = settled()
    end = bench.node.core.log.end
    first = bench._next_reply + 1
    for wait_ms in (100, 200):
        assert bench.fetch(None, *end, max_wait_ms=wait_ms, high_watermark=4) is None
    bench.wait(100)
    assert replies(bench) == [first]
    bench.wait(100)
    assert replies(bench) == [first + 1]


def test_a_late_timer_answers_all_whose_time_is_over() -> None:
    bench = settled()
    park(bench, 2, max_wait_ms=100, high_watermark=4)
    park(bench, 3, max_wait_ms=200, high_watermark=4)
    bench.step(TimerFired(), after_ms=300)
    assert len(replies(bench)) == 2


def test_a_replica_that_knows_a_higher_high_watermark_is_told_nothing_soon() -> None:
    bench = settled()
    park(bench, 2, max_wait_ms=100, high_watermark=9)
    bench.wait(99)
    assert replies(bench) == []


def test_while_the_first_voters_are_named_everybody_gets_the_records_at_once() -> None:
    bench = first_leader()
    bench.sync()
    bench.fetch(key(2), 0, 0, max_wait_ms=0)
    first = bench._next_reply + 1
    for replica in (2, 9):
        park(bench, replica)
    bench.fetch(key(3), 0, 0)
    assert {first, first + 1} <= set(replies(bench))


def test_a_fetch_is_answered_only_behind_the_append_that_wakes_it() -> None:
    """The answer reads the records from the log, where the append puts them."""
    bench = settled()
    park(bench, 2, high_watermark=4)
    bench.step(AppendRequested(1, 1))
    assert [type(effect) for effect in bench.last] == [AppendClient, SendReply]
    bench = settled()
    park(bench, 2, high_watermark=4)
    remove(bench, key(3))
    [at] = [at for at, effect in enumerate(bench.last) if isinstance(effect, AppendControl)]
    assert [type(effect) for effect in bench.last[at + 1 :]] == [SendReply]


def test_a_fetch_that_does_not_wait_is_answered_though_there_is_nothing() -> None:
    bench = settled()
    answer = bench.fetch(key(2), *bench.node.core.log.end, max_wait_ms=0, high_watermark=4)
    assert answer is not None
    assert answer.error is None
    park(bench, 3, max_wait_ms=1, high_watermark=4)


def test_what_a_fetch_is_refused_for_is_reported() -> None:
    bench = settled()
    bench.fetch(key(2), 4, 4, cluster_id="other")
    assert f"fetch of {key(2)} refused: cluster other" in bench.reports
    answer = bench.fetch(key(2), 4, 1, epoch=0)
    assert answer is not None
    assert answer.top_level_error == "UNKNOWN_SERVER_ERROR"
    assert f"fetch of {key(2)} refused: impossible values" in bench.reports


def test_a_replica_that_fetches_below_the_start_of_the_log_after_it_had_more_is_reported() -> None:
    bench = settled()
    bench.node.core.log.snapshots.append(SnapshotId(4, 4))
    bench.fetch(key(3), 0, 0)
    assert f"replica {key(3)} fetches from offset 0 after it acknowledged" in bench.reports
