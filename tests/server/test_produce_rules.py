"""The rules of Produce one by one, on a clock and an event loop that the test turns by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c

from quorumd.raft.errors import KafkaError, Refusal
from quorumd.server.model.topic import METADATA
from quorumd.server.requests.produce import GATHERED_MAX
from quorumd.storage.log import ChunkSummary
from quorumd.wire.batch_header import stamp
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from quorumd.wire.records import Record, build_batch
from tests.server.produce_bench import ProduceBench, of, produce, rows_of
from tests.support.asking import TOPIC, batch

NOT_LEADER = Refusal(KafkaError.NOT_LEADER_OR_FOLLOWER, "this replica does not lead")
LOST = ErrorCode.NOT_LEADER_OR_FOLLOWER
TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT
BOTH_WAYS = pytest.mark.parametrize("is_general", [False, True])


@pytest.fixture
def at() -> ProduceBench:
    return ProduceBench()


def long_batch(*, timestamp_ahead: bool = False) -> bytes:
    """So many records that they are not checked in one go; the last may be too far ahead of the clock."""
    latest = 1_700_000_000_000 + 3_600_000
    times = [latest - 1] * 6_000
    if timestamp_ahead:
        times[-1] = latest + 10
    data = bytearray(
        build_batch([Record(0, time, None, b"%d" % (at % 7)) for at, time in enumerate(times)])
    )
    if timestamp_ahead:
        data[35:43] = (latest - 1).to_bytes(8, "big")  # the header hides it
        data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


# --- turns


@pytest.mark.parametrize("data", [batch(), long_batch()], ids=["at once", "in steps"])
def test_an_error_while_a_lone_clients_batch_is_appended_ends_the_process(
    at: ProduceBench, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """What calls the handler closes the connection, and would go on with state that is half changed."""
    at.append(produce(batch()))
    at.partition.commit(1)
    error = KeyError("an invariant is broken")

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(at.partition, "append", fails)
    with pytest.raises(KeyError):
        at.send(produce(data))
    assert at.partition.ended == [error]


def test_a_lone_client_does_not_wait_for_the_end_of_the_turn(at: ProduceBench) -> None:
    at.send(produce(batch()))
    assert (len(at.soon), at.partition.log_end_offset) == (1, 0), "others may come"
    at.end_turn()
    at.partition.commit(1)
    at.send(produce(batch()))
    assert (len(at.soon), at.partition.log_end_offset) == (0, 2)
    # One waits for its commit: others may come again.
    at.send(produce(batch()))
    assert (len(at.soon), at.partition.log_end_offset) == (1, 2)
    at.end_turn()
    assert at.partition.log_end_offset == 3


@pytest.mark.parametrize("is_refused", [False, True])
def test_after_a_turn_of_several_the_next_batch_waits_for_the_end_of_its_turn(
    at: ProduceBench, is_refused: bool
) -> None:
    at.append(produce(batch()))
    for _ in range(2):
        at.send(produce(batch()))
    assert len(at.soon) == 1, "one end of the turn for all of it"
    if is_refused:
        at.partition.append_refusal = NOT_LEADER
    at.end_turn()
    at.partition.append_refusal = None
    end_offset = at.partition.log_end_offset
    at.partition.commit(end_offset)
    assert [error for _, error, _ in at.rows()].count(LOST) == (2 if is_refused else 0)
    at.send(produce(batch()))
    assert (len(at.soon), at.partition.log_end_offset) == (1, end_offset)


def test_a_turn_goes_on_while_more_comes(at: ProduceBench) -> None:
    """Seven times something comes, and then nothing."""
    for count in range(1, 8):
        at.send(produce(batch()))
        at.come_round()
        assert (len(at.soon), at.partition.log_end_offset) == (1, 0), count
    at.come_round()
    assert (len(at.soon), at.partition.log_end_offset) == (0, 7)
    assert len(at.partition.chunks) == 1, "one append"
    at.send(produce(batch()))
    at.come_round()
    assert at.partition.log_end_offset == 7, "the next turn waits as this one did"
    at.come_round()
    assert at.partition.log_end_offset == 8


def test_a_turn_of_many_is_appended_at_once(at: ProduceBench) -> None:
    for _ in range(GATHERED_MAX - 1):
        at.send(produce(batch()))
    at.come_round()
    assert at.partition.log_end_offset == 0, "one less waits for others"
    at.send(produce(batch()))
    at.come_round()
    assert (len(at.soon), at.partition.log_end_offset) == (0, GATHERED_MAX)


@pytest.mark.parametrize(("round_s", "rounds"), [(0.0004, 3), (0.005, 1)])
def test_a_turn_goes_on_for_a_millisecond_at_the_most(
    at: ProduceBench, round_s: float, rounds: int
) -> None:
    """Where the event loop has much else to do, each of its turns takes long."""
    for count in range(1, rounds + 1):
        at.send(produce(batch()))
        at.clock.now += round_s
        at.come_round()
        assert at.partition.log_end_offset == (count if count == rounds else 0)
    assert not at.soon


def test_a_turn_that_is_refused_waits_for_nothing(at: ProduceBench) -> None:
    number = at.send(produce(batch()))
    at.partition.append_refusal = NOT_LEADER
    at.come_round()
    assert at.rows() == [(number, LOST, -1)]
    assert not at.soon
    assert at.handler.parked_count == 0


def test_a_turn_is_one_append_in_the_order_of_arrival(at: ProduceBench) -> None:
    sent = [batch(count, value=b"%d" % count) for count in (2, 1, 3)]
    numbers = [at.send(produce(data)) for data in sent]
    assert at.handler.parked_count == 3
    at.end_turn()
    (chunk,) = at.partition.chunks
    expected = zip(sent, (0, 2, 3), strict=True)
    assert chunk.data == b"".join(stamp(data, offset, 5) for data, offset in expected)
    assert (chunk.base_offset, chunk.end_offset) == (0, 6)
    sizes = at.metrics.batch_bytes
    assert (sizes.count, sizes.sum) == (3, sum(map(len, sent)))
    parked = [one for append in at.handler.parked.appends for one in append.batches]
    assert [one.data for one in parked] == [b""] * 3, "the log has them"
    at.partition.commit(6)
    assert at.rows() == [(numbers[0], 0, 0), (numbers[1], 0, 2), (numbers[2], 0, 3)]


def test_what_waits_for_its_turn_and_for_its_commit_is_counted(at: ProduceBench) -> None:
    at.append(produce(batch()))
    at.send(produce(batch()))
    at.send(produce(batch()))
    assert at.handler.parked_count == 3


def test_turns_that_are_taken_late_do_not_mix(at: ProduceBench) -> None:
    """The driver may have events that wait before it comes to an append."""
    at.partition.is_late = True
    at.append(produce(batch(2, value=b"first")))
    at.append(produce(batch(1, value=b"second")))
    at.partition.take_late()
    assert [(chunk.base_offset, chunk.end_offset) for chunk in at.partition.chunks] == [
        (0, 2),
        (2, 3),
    ]
    assert b"first" in at.partition.chunks[0].data
    assert b"second" in at.partition.chunks[1].data


def test_a_commit_that_comes_with_the_append_itself_is_answered(at: ProduceBench) -> None:
    """Batches and duplicates are parked before the rules hear of them."""
    at.partition.commits_at_once = True
    at.append(produce(of(7, 0), of(7, 0)))
    assert at.rows() == [(1, 0, 0), (1, 0, 0)]


@pytest.mark.parametrize(
    ("times", "newest"),
    [
        ([[10, 30], [20]], (30, 1)),
        ([[10, 30], [30]], (30, 1)),
        ([[10], [40, 5], [40]], (40, 2)),
        ([[10], [5], [50]], (50, 2)),
        ([[-1], [-1]], (-1, 0)),
    ],
)
def test_the_log_is_told_the_newest_timestamp_and_the_first_batch_that_has_it(
    at: ProduceBench, times: list[list[int]], newest: tuple[int, int]
) -> None:
    for row in times:
        at.send(produce(build_batch([Record(0, time, None, b"v") for time in row])))
    at.end_turn()
    (chunk,) = at.partition.chunks
    assert chunk.summary == ChunkSummary(5, *newest)


# --- what is not appended


@BOTH_WAYS
@pytest.mark.parametrize("version", [9, 12, 13])
def test_acks_are_all_one_or_none(at: ProduceBench, version: int, is_general: bool) -> None:
    for acks in (-1, 0, 1):
        at.append(produce(batch(), acks=acks, version=version, is_general=is_general), version)
    assert at.partition.log_end_offset == 3
    for acks in (-2, 2, 3):
        at.append(produce(batch(), acks=acks, version=version, is_general=is_general), version)
        (row,) = at.rows()
        assert row[1] == ErrorCode.INVALID_REQUIRED_ACKS
    assert at.partition.log_end_offset == 3


@BOTH_WAYS
def test_what_is_asked_of_another_topic_is_not_judged_by_its_acks(
    at: ProduceBench, is_general: bool
) -> None:
    for topic, index in (("other", 0), (TOPIC, 1), (TOPIC, -1)):
        at.append(produce(batch(), acks=7, is_general=is_general, topic=topic, index=index))
        ((_, error, _),) = at.rows()
        assert error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_wrong_request_is_as_wrong_when_it_comes_again(at: ProduceBench) -> None:
    """A client's next request has the same head, which is not looked at twice if it was right."""
    for _ in range(2):
        for wrong in ({"topic": "other"}, {"index": 1}, {"acks": 7}):
            for _ in range(2):
                at.append(produce(batch(), **wrong))
            assert not any(error is ErrorCode.NONE for _, error, _ in at.rows()), wrong
        assert not at.partition.chunks


def test_a_transaction_is_refused_whatever_else_is_wrong(at: ProduceBench) -> None:
    at.append(produce(batch(), transactional_id="t"))
    at.append(produce(batch(), transactional_id="t", topic="other", acks=7))
    errors = [error for _, error, _ in at.rows()]
    assert errors == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
    assert not at.partition.chunks


@pytest.mark.parametrize("acks", [-1, 0])
@BOTH_WAYS
def test_a_refusal_of_all_appends_is_the_answer(
    at: ProduceBench, acks: int, is_general: bool
) -> None:
    at.partition.append_refusal = NOT_LEADER
    number = at.append(produce(batch(), acks=acks, is_general=is_general))
    ((answered, answer),) = at.answers()
    assert answered == number
    if acks:
        (row,) = rows_of(answer)
        assert (row.error_code, row.error_message) == (LOST, "this replica does not lead")
    else:
        assert answer == "a batch without acknowledgement was refused: NOT_LEADER_OR_FOLLOWER"
    assert not at.partition.chunks
    assert at.metrics.refused == {"NOT_LEADER_OR_FOLLOWER": 1}


def test_each_error_of_a_request_is_counted_once(at: ProduceBench) -> None:
    at.append(produce(None, batch(), None, b"x" * 70, acks=0))
    at.partition.commit(1)
    assert at.metrics.refused == {"INVALID_RECORD": 1, "CORRUPT_MESSAGE": 1}
    assert at.answers() == [
        (1, "a batch without acknowledgement was refused: CORRUPT_MESSAGE, INVALID_RECORD")
    ]


def test_without_acknowledgement_a_request_ends_when_its_batch_commits(at: ProduceBench) -> None:
    for is_general in (False, True):
        number = at.append(produce(batch(), acks=0, is_general=is_general))
        assert at.answers() == []
        at.partition.commit(at.partition.log_end_offset)
        assert at.answers() == [(number, None)]


def test_a_record_that_is_refused_is_named(at: ProduceBench) -> None:
    data = bytearray(batch(3))
    data[-1] = 4  # the last record says that it has headers
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    at.append(produce(bytes(data), batch()))
    at.partition.commit(1)
    ((_, answer),) = at.answers()
    refused, fine = rows_of(answer)
    assert [
        (error.batch_index, bool(error.batch_index_error_message))
        for error in refused.record_errors
    ] == [(2, True)]
    assert fine.record_errors == ()


@pytest.mark.parametrize("is_general", [False, True])
def test_a_batch_that_is_checked_over_several_turns_is_appended_once_and_only_if_it_may_be(
    at: ProduceBench, is_general: bool
) -> None:
    data = long_batch()
    for ends in ("appended", "no leader", "refused"):
        before = at.partition.log_end_offset
        records = long_batch(timestamp_ahead=True) if ends == "refused" else data
        left = at.begin(produce(records, is_general=is_general))
        assert left is not None
        assert at.partition.log_end_offset == before
        if ends == "no leader":
            at.partition.append_refusal = NOT_LEADER
        steps = sum(1 for _ in left)
        assert steps > 2
        at.end_turn()
        at.partition.append_refusal = None
        appended = at.partition.log_end_offset - before
        at.partition.commit(at.partition.log_end_offset)
        ((_, error, _),) = at.rows()
        expected = {
            "appended": (6_000, ErrorCode.NONE),
            "no leader": (0, LOST),
            "refused": (0, ErrorCode.INVALID_TIMESTAMP),
        }
        assert (appended, error) == expected[ends]


def test_a_request_is_answered_when_its_last_partition_is_and_not_before(
    at: ProduceBench,
) -> None:
    """The first ones are refused, or even committed, while others are not looked at yet."""
    left = at.begin(produce(None, None, None, None, None, None, batch()))
    assert left is not None, "one step for each partition, and only a few at once"
    assert at.answers() == []
    for _ in left:
        assert at.answers() == []
    at.end_turn()
    assert at.answers() == []
    at.partition.commit(1)
    (number, answer) = at.answers()[0]
    errors = [row.error_code for row in rows_of(answer)]
    assert (number, errors) == (1, [ErrorCode.INVALID_RECORD] * 6 + [0])


# --- who leads


def errors_and_leader(at: ProduceBench, version: int, act: Callable[[], Any]) -> Any:
    act()
    ((_, answer),) = at.answers()
    rows = rows_of(answer)
    nodes = [(node.node_id, node.host, node.port) for node in answer.node_endpoints]
    leaders = [(row.current_leader.leader_id, row.current_leader.leader_epoch) for row in rows]
    return [row.error_code for row in rows], leaders, nodes


@pytest.mark.parametrize("version", range(8, 14))
@BOTH_WAYS
def test_who_leads_is_named_where_it_matters(
    at: ProduceBench, version: int, is_general: bool
) -> None:
    named, nobody = version >= 10, (-1, -1)
    node = (1, "leader.example", 9092)

    def ask(**settings: Any) -> Any:
        return errors_and_leader(
            at,
            version,
            lambda: at.append(
                produce(batch(), version=version, is_general=is_general, **settings), version
            ),
        )

    assert ask(acks=5) == ([ErrorCode.INVALID_REQUIRED_ACKS], [nobody], [])
    at.partition.append_refusal = NOT_LEADER
    assert ask() == ([LOST], [(1, 5) if named else nobody], [node] if named else [])
    at.partition.leader_id = None
    assert ask() == ([LOST], [nobody], [])
    at.partition.leader_id, at.partition.leader_endpoints = 1, ()
    assert ask() == ([LOST], [(1, 5) if named else nobody], [])


def test_one_partition_that_is_not_led_here_is_enough_to_name_the_leader(at: ProduceBench) -> None:
    rows = (
        ProduceRequestPartition(index=0, records=batch()),
        ProduceRequestPartition(index=1, records=batch()),
    )
    request = ProduceRequest(
        acks=-1, timeout_ms=0, topic_data=(ProduceRequestTopic(name=TOPIC, partition_data=rows),)
    )
    at.partition.append_refusal = NOT_LEADER
    found = errors_and_leader(at, 10, lambda: at.append(request, 10))
    assert found == (
        [LOST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [(1, 5), (-1, -1)],
        [(1, "leader.example", 9092)],
    )


@pytest.mark.parametrize("version", [12, 13])
@BOTH_WAYS
def test_a_refusal_names_the_topic_as_the_request_does(
    at: ProduceBench, version: int, is_general: bool
) -> None:
    at.append(produce(b"no batch", version=version, is_general=is_general), version)
    ((_, answer),) = at.answers()
    named = (answer.responses[0].name, answer.responses[0].topic_id)
    assert named == (("", METADATA.topic_id) if version >= 13 else (TOPIC, UUID(int=0)))
