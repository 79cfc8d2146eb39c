"""What Produce keeps until it is committed: how much, in which order it is answered, and for how long."""

from __future__ import annotations

import pytest

from quorumd.raft.errors import KafkaError, Refusal
from quorumd.server.model.producer_state import Batch
from quorumd.server.requests import produce as produce_module
from quorumd.server.requests.parked_appends import SWEEP_S
from quorumd.wire.error_codes import ErrorCode
from tests.server.produce_bench import ProduceBench, of, produce, rows_of
from tests.support.asking import batch

NOT_LEADER = Refusal(KafkaError.NOT_LEADER_OR_FOLLOWER, "this replica does not lead")
LOST = ErrorCode.NOT_LEADER_OR_FOLLOWER
TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT
BOTH_WAYS = pytest.mark.parametrize("is_general", [False, True])


@pytest.fixture
def at() -> ProduceBench:
    return ProduceBench()


# --- what may wait


def waits(data: bytes) -> int:
    return len(data) + produce_module.WAITING_BYTES


def test_as_much_as_may_wait_may_and_no_more(
    at: ProduceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = batch()
    monkeypatch.setattr(produce_module, "UNCOMMITTED_BYTES_MAX", 2 * waits(data))

    def refused() -> list[tuple[int, int, int]]:
        at.append(produce(batch()))
        return at.rows()

    assert [refused(), refused(), refused()] == [[], [], []], "exactly so much does not refuse"
    ((_, error, _),) = refused()
    assert error == ErrorCode.NOT_ENOUGH_REPLICAS
    at.partition.commit(1)
    at.rows()
    assert refused() == []
    ((_, error, _),) = refused()
    assert error == ErrorCode.NOT_ENOUGH_REPLICAS
    at.handler.on_leadership_lost()
    at.rows()
    assert [refused(), refused(), refused()] == [[], [], []]
    ((_, error, _),) = refused()
    assert error == ErrorCode.NOT_ENOUGH_REPLICAS
    at.clock.move_to(10.0)
    at.rows()
    ((_, error, _),) = refused()
    assert error == ErrorCode.NOT_ENOUGH_REPLICAS, "what was answered late is still in the log"
    at.partition.commit(at.partition.log_end_offset)
    assert at.rows() == []
    assert [refused(), refused(), refused()] == [[], [], []]


def test_a_refusal_of_all_appends_comes_before_what_may_wait(
    at: ProduceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_module, "UNCOMMITTED_BYTES_MAX", 0)
    at.append(produce(batch()))
    at.partition.append_refusal = NOT_LEADER
    at.append(produce(batch()))
    ((_, error, _),) = at.rows()
    assert error == LOST


# --- commits


def test_answers_come_in_the_order_of_the_log_as_far_as_it_is_committed(at: ProduceBench) -> None:
    numbers = [at.append(produce(batch(2))) for _ in range(4)]
    at.partition.commit(1)
    assert at.rows() == []
    at.partition.commit(4)
    assert at.rows() == [(numbers[0], 0, 0), (numbers[1], 0, 2)]
    at.partition.commit(7)
    assert at.rows() == [(numbers[2], 0, 4)]
    at.partition.commit(100)
    assert at.rows() == [(numbers[3], 0, 6)]
    at.partition.commit(101)
    assert at.rows() == []


def test_a_commit_is_measured_from_the_end_of_each_turn_and_counted_by_batches(
    at: ProduceBench,
) -> None:
    at.send(produce(batch()))
    at.send(produce(batch()))
    at.clock.now = 1.0
    at.end_turn()
    at.clock.now = 3.0
    at.append(produce(batch()))
    at.clock.now = 4.0
    at.append(produce(batch()))
    at.clock.now = 8.0
    at.partition.commit(0)
    assert at.commits == (0, 0.0), "nothing was committed"
    at.partition.commit(3)
    assert at.commits == (3, 7.0 * 2 + 5.0)
    at.partition.commit(4)
    assert at.commits == (4, 7.0 * 2 + 5.0 + 4.0)


def test_of_one_append_so_much_is_answered_as_is_committed(at: ProduceBench) -> None:
    numbers = [at.send(produce(batch(2))) for _ in range(4)]
    at.end_turn()
    at.clock.now = 1.0
    at.partition.commit(1)
    assert at.rows() == []
    at.partition.commit(2)
    assert at.rows() == [(numbers[0], 0, 0)]
    at.partition.commit(7)
    assert at.rows() == [(numbers[1], 0, 2), (numbers[2], 0, 4)]
    assert at.handler.parked_count == 1
    at.partition.commit(8)
    assert at.rows() == [(numbers[3], 0, 6)]
    assert at.commits == (4, 4.0)


def test_what_is_committed_of_an_append_makes_room_for_as_much(
    at: ProduceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_module, "UNCOMMITTED_BYTES_MAX", 2 * waits(batch()))
    for _ in range(4):
        at.send(produce(batch()))
    at.end_turn()
    for committed, is_refused in ((0, True), (1, True), (2, False), (3, False), (4, False)):
        at.partition.commit(committed)
        at.rows()
        at.append(produce(batch()))
        assert [error for _, error, _ in at.rows()] == (
            [ErrorCode.NOT_ENOUGH_REPLICAS] if is_refused else []
        )
    at.partition.commit(at.partition.log_end_offset)
    for _ in range(3):
        at.append(produce(batch()))
    assert [error for _, error, _ in at.rows()].count(ErrorCode.NOT_ENOUGH_REPLICAS) == 0
    at.append(produce(batch()))
    assert [error for _, error, _ in at.rows()] == [ErrorCode.NOT_ENOUGH_REPLICAS]


@pytest.mark.parametrize("version", range(3, 14))
@BOTH_WAYS
def test_an_answer_says_where_the_log_starts(
    at: ProduceBench, version: int, is_general: bool
) -> None:
    at.partition.log_start_offset, at.partition.log_end_offset = 4, 10
    at.append(produce(batch(), version=version, is_general=is_general), version)
    at.append(produce(None, version=version, is_general=is_general), version)
    at.partition.commit(11)
    (_, refused), (_, appended) = at.answers()
    (row,) = rows_of(appended)
    assert (row.error_code, row.base_offset) == (0, 10)
    assert row.log_start_offset == (4 if version >= 5 else -1)
    (row,) = rows_of(refused)
    assert (row.base_offset, row.log_start_offset) == (-1, -1)
    assert appended.node_endpoints == refused.node_endpoints == ()


# --- duplicates


@pytest.mark.parametrize("producer_id", [0, 7])
def test_a_producer_id_is_one_from_0_on(at: ProduceBench, producer_id: int) -> None:
    at.partition.log_end_offset = 10
    for _ in range(2):
        at.append(produce(of(producer_id, 0, 3)))
    assert at.partition.log_end_offset == 13
    assert at.producers.remembered()[producer_id].batches == (Batch(0, 2, 10, 12),)
    for _ in range(2):
        at.append(produce(batch()))
    assert at.partition.log_end_offset == 15, "without a producer nothing is a duplicate"
    assert len(at.producers) == 1
    assert at.metrics.duplicate_batches == 1


def test_a_duplicate_is_answered_behind_its_original_and_before_what_follows(
    at: ProduceBench,
) -> None:
    first, second = at.append(produce(of(7, 0, 2))), at.append(produce(of(7, 2)))
    again, last = at.append(produce(of(7, 0, 2))), at.append(produce(batch()))
    second_again = at.append(produce(of(7, 2)))
    assert at.handler.parked_count == 5
    at.partition.commit(2)
    assert at.rows() == [(first, 0, 0), (again, 0, 0)]
    at.partition.commit(3)
    assert at.rows() == [(second, 0, 2), (second_again, 0, 2)]
    at.partition.commit(4)
    assert at.rows() == [(last, 0, 3)]


@pytest.mark.parametrize("committed", [3, 4, 9])
def test_a_duplicate_of_what_is_committed_is_answered_at_once(
    at: ProduceBench, committed: int
) -> None:
    at.append(produce(of(7, 0, 3)))
    at.append(produce(batch()))
    at.partition.commit(committed)
    at.answers()
    at.partition.log_start_offset = 2
    number = at.append(produce(of(7, 0, 3)))
    ((answered, answer),) = at.answers()
    (row,) = rows_of(answer)
    assert (answered, row.error_code, row.base_offset) == (number, 0, 0)
    assert row.log_start_offset == 2
    assert at.handler.parked_count == (1 if committed == 3 else 0)


def test_a_duplicate_of_what_is_not_committed_waits(at: ProduceBench) -> None:
    at.append(produce(of(7, 0, 3)))
    at.partition.commit(2)
    at.append(produce(of(7, 0, 3)))
    assert at.rows() == []
    waiting = [each for append in at.handler.parked.appends for each in append.batches]
    assert [each.data for each in waiting] == [b"", b""], "they are in the log"
    at.partition.commit(3)
    assert at.rows() == [(1, 0, 0), (2, 0, 0)]


def test_batches_that_a_leader_has_parked_no_more_keep_their_order_when_they_are_sent_again(
    at: ProduceBench,
) -> None:
    """It lost leadership and won it again: the batches are in its log, their requests answered."""
    for sequence in range(3):
        at.append(produce(of(7, sequence)))
    at.handler.on_leadership_lost()
    assert [error for _, error, _ in at.rows()] == [LOST] * 3
    at.partition.log_end_offset += 1  # a leader's first record
    newest = at.append(produce(batch()))
    again = [at.append(produce(of(7, sequence))) for sequence in (0, 2, 1)]
    at.partition.commit(1)
    assert at.rows() == [(again[0], 0, 0)]
    at.partition.commit(2)
    assert at.rows() == [(again[2], 0, 1)]
    at.partition.commit(5)
    assert at.rows() == [(again[1], 0, 2), (newest, 0, 4)]


def test_a_duplicate_is_measured_from_its_own_arrival(at: ProduceBench) -> None:
    at.append(produce(of(7, 0)))
    at.clock.now = 2.0
    at.append(produce(of(7, 0)))
    at.clock.now = 3.0
    at.partition.commit(1)
    assert at.commits == (2, 3.0 + 1.0)


def test_a_refused_sequence_is_answered_at_once_and_keeps_its_place_from_nobody(
    at: ProduceBench,
) -> None:
    first = at.send(produce(of(7, 0)))
    wrong = at.send(produce(of(7, 5)))
    last = at.send(produce(of(7, 1)))
    at.end_turn()
    assert at.rows() == [(wrong, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
    at.partition.commit(2)
    assert at.rows() == [(first, 0, 0), (last, 0, 1)]


def test_a_turn_of_duplicates_alone_appends_nothing(at: ProduceBench) -> None:
    at.append(produce(of(7, 0)))
    at.append(produce(of(7, 0)))
    assert len(at.partition.chunks) == 1


# --- time


@BOTH_WAYS
def test_a_request_waits_for_its_timeout_from_its_arrival(
    at: ProduceBench, is_general: bool
) -> None:
    at.clock.now = 100.0
    number = at.append(produce(batch(), timeout_ms=4_000_000, is_general=is_general))
    (alarm,) = at.clock.alarms
    assert alarm.at == 100.0 + SWEEP_S
    for now in (100.2, 4_096.0, 4_099.9):
        at.clock.move_to(now)
        assert at.answers() == []
    at.clock.move_to(4_100.0)
    ((answered, answer),) = at.answers()
    (row,) = rows_of(answer)
    assert (answered, row.error_code, row.base_offset) == (number, TIMED_OUT, -1)
    assert "no majority" in (row.error_message or "")
    at.partition.commit(1)
    assert at.answers() == [], "it was answered"


def test_each_request_has_its_own_time(at: ProduceBench) -> None:
    soon = at.append(produce(batch(), timeout_ms=1_000))
    late = at.append(produce(batch(), timeout_ms=3_000))
    at.clock.move_to(2.0)
    assert at.rows() == [(soon, TIMED_OUT, -1)]
    assert len(at.clock.alarms) == 1
    at.clock.move_to(2.5)
    assert at.rows() == []
    at.clock.move_to(3.5)
    assert at.rows() == [(late, TIMED_OUT, -1)]
    at.partition.commit(2)
    at.clock.move_to(4.0)
    assert at.clock.alarms == [], "nobody waits, and nobody looks"
    again = at.append(produce(batch(), timeout_ms=1_000))
    at.clock.move_to(6.0)
    assert at.rows() == [(again, TIMED_OUT, -1)]


@pytest.mark.parametrize("order", [(1, 3, 2), (3, 2, 1), (2, 1, 3)])
def test_requests_of_one_append_have_their_own_times_too(
    at: ProduceBench, order: tuple[int, ...]
) -> None:
    numbers = {seconds: at.send(produce(batch(), timeout_ms=1_000 * seconds)) for seconds in order}
    at.end_turn()
    for now in (0.5, 0.9):
        at.clock.move_to(now)
        assert at.rows() == []
    for seconds in (1, 2, 3):
        at.clock.move_to(float(seconds))
        assert at.rows() == [(numbers[seconds], TIMED_OUT, -1)]
        at.clock.move_to(seconds + 0.5)
        assert at.rows() == []
    assert at.handler.parked_count == 3
    at.partition.commit(3)
    assert (at.rows(), at.handler.parked_count) == ([], 0)


def test_duplicates_whose_time_is_over_go_and_originals_stay_until_they_commit(
    at: ProduceBench,
) -> None:
    at.append(produce(of(7, 0), timeout_ms=1_000))
    patient = at.append(produce(of(7, 0), timeout_ms=9_000))
    for _ in range(3):
        at.append(produce(of(7, 0), timeout_ms=1_000))
    at.append(produce(batch(), timeout_ms=1_000))
    at.clock.move_to(2.0)
    assert [error for _, error, _ in at.rows()] == [TIMED_OUT] * 5
    assert at.handler.parked_count == 3
    at.partition.commit(1)
    assert at.rows() == [(patient, 0, 0)]
    assert at.handler.parked_count == 1


def test_a_duplicate_whose_original_is_parked_no_more_has_its_time_too(at: ProduceBench) -> None:
    at.append(produce(of(7, 0)))
    at.handler.on_leadership_lost()
    at.clock.move_to(1.0)
    assert at.clock.alarms == []
    at.rows()
    again = at.append(produce(of(7, 0), timeout_ms=1_000))
    at.clock.move_to(3.0)
    assert at.rows() == [(again, TIMED_OUT, -1)]
    assert at.handler.parked_count == 0


def test_what_was_answered_is_not_answered_again_when_leadership_ends(at: ProduceBench) -> None:
    at.append(produce(batch(), timeout_ms=1_000))
    waiting = at.append(produce(batch(), timeout_ms=9_000))
    at.clock.move_to(2.0)
    at.rows()
    at.handler.on_leadership_lost()
    assert at.rows() == [(waiting, LOST, -1)]


def test_a_handler_that_is_closed_looks_at_the_clock_no_more(at: ProduceBench) -> None:
    at.handler.close()
    at.append(produce(batch(), timeout_ms=1_000))
    at.handler.close()
    at.clock.move_to(5.0)
    assert at.answers() == []
