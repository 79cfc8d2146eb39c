"""Append if unchanged, in Produce: judged when the batch gets its offset, answered when that is final."""

from __future__ import annotations

import gc

import pytest

from quorumd.raft.errors import KafkaError, Refusal
from quorumd.server.model.conditions import WINDOW_IDLE_S, KeyWindow
from quorumd.wire.conditions import IF_UNCHANGED_SINCE, KEYS_MAX, NAMED_KEY
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from quorumd.wire.records import Record, build_batch
from tests.server.produce_bench import ProduceBench, rows_of
from tests.support.asking import TOPIC

REFUSED = ErrorCode.INVALID_RECORD
GONE = Refusal(KafkaError.NOT_LEADER_OR_FOLLOWER, "this replica does not lead")


def batch(
    *keys: bytes | None,
    since: int | None = None,
    named: tuple[bytes, ...] = (),
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    condition = () if since is None else ((IF_UNCHANGED_SINCE, b"%d" % since),)
    headers = (*condition, *((NAMED_KEY, key) for key in named))
    records = [
        Record(timestamp=1, key=key, value=b"v", headers=() if i else headers)
        for i, key in enumerate(keys)
    ]
    return build_batch(
        records,
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


def to(*batches: bytes, acks: int = -1) -> ProduceRequest:
    rows = tuple(ProduceRequestPartition(index=0, records=data) for data in batches)
    topic = ProduceRequestTopic(name=TOPIC, partition_data=rows)
    return ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=(topic,))


class Bench(ProduceBench):
    def texts(self) -> list[tuple[int, int, int, str]]:
        """Of each answer: the request's number, error code, base offset, and what the record errors say."""
        return [
            (
                number,
                row.error_code,
                row.base_offset,
                " ".join(
                    f"[{error.batch_index}] {error.batch_index_error_message}"
                    for error in row.record_errors
                ),
            )
            for number, answer in self.answers()
            for row in rows_of(answer)
        ]

    def with_window(self) -> Bench:
        """Everything before it, one record more than there was, being committed and forgotten."""
        end_offset = self.partition.log_end_offset
        self.append(to(batch(b"first", since=end_offset)))
        self.partition.commit(end_offset + 1)
        self.texts()
        return self


def test_a_condition_that_holds_is_an_append_like_any_other() -> None:
    at = Bench()
    number = at.append(to(batch(b"a", b"b", since=0)))
    assert at.texts() == []
    at.partition.commit(2)
    assert at.texts() == [(number, 0, 0, "")]


@pytest.mark.parametrize("codec", range(5))
def test_a_conflict_names_key_and_offset_and_nothing_is_appended(codec: int) -> None:
    at = Bench().with_window()
    at.append(to(batch(b"x", b"a", codec=codec)))
    at.partition.commit(3)
    number = at.append(to(batch(b"y", b"a", since=1, codec=codec)))
    assert at.texts()[1:] == [
        (
            number,
            REFUSED,
            -1,
            "[1] Record 1 conflicts: its key was written at offset 2, and must not have been since 1."
            " The key is 'a'.",
        )
    ]
    assert at.metrics.refused == {"INVALID_RECORD": 1}
    assert at.partition.log_end_offset == 3
    number = at.append(to(batch(b"y", b"a", since=3, codec=codec)))
    at.partition.commit(5)
    assert at.texts() == [(number, 0, 3, "")]


def test_each_client_is_refused_in_the_version_that_it_speaks() -> None:
    at = Bench().with_window()
    at.append(to(batch(b"a")))
    at.partition.commit(2)
    at.texts()
    for version in (8, 9, 12, 8):
        at.append(to(batch(b"a", since=1)), version)
        ((_, error, _, text),) = at.texts()
        assert error == REFUSED
        assert text.startswith("[0] Record 0 conflicts: its key was written at offset 1"), version


def test_a_deletion_is_a_write() -> None:
    at = Bench().with_window()
    at.append(to(build_batch([Record(timestamp=1, key=b"a", value=None)])))
    at.partition.commit(2)
    at.append(to(batch(b"a", since=1)))
    assert [row[1] for row in at.texts()] == [0, REFUSED]


def test_the_batches_of_one_turn_are_judged_one_after_the_other() -> None:
    at = Bench().with_window()
    for since in (1, 1, 2):
        at.send(to(batch(b"a", since=since)))
    at.send(to(batch(b"b", since=1), batch(b"b", since=1), batch(b"c", since=3)))
    at.end_turn()
    assert at.texts() == []
    at.partition.commit(9)
    assert [row[:3] for row in at.texts()] == [
        (2, 0, 1),
        (3, REFUSED, -1),
        (4, 0, 2),
        (5, 0, 3),
        (5, REFUSED, -1),
        (5, 0, 4),
    ]


def test_a_refusal_waits_until_what_it_is_refused_for_is_committed() -> None:
    at = Bench().with_window()
    at.append(to(batch(b"a")))
    number = at.append(to(batch(b"a", since=1)))
    at.partition.commit(1)
    assert at.texts() == []
    at.append(to(batch(b"z")))
    at.partition.commit(2)
    assert [row[:2] for row in at.texts()] == [(2, 0), (number, REFUSED)]
    assert at.handler.parked_count == 1
    assert at.commits[0] == 2


def turn_with_a_refusal() -> Bench:
    """One batch appended alone, then four of one turn: the last one is refused for the second."""
    at = Bench().with_window()
    at.append(to(batch(b"alone")))
    for key in (b"x", b"a", b"z"):
        at.send(to(batch(key)))
    at.send(to(batch(b"a", since=2)))
    at.end_turn()
    return at


def test_a_refusal_holds_up_nobody_who_is_committed_before_it() -> None:
    at = turn_with_a_refusal()
    at.partition.commit(3)
    assert [row[:3] for row in at.texts()] == [(2, 0, 1), (3, 0, 2)]
    at.partition.commit(4)
    assert sorted(row[:3] for row in at.texts()) == [(4, 0, 3), (6, REFUSED, -1)]
    at.partition.commit(5)
    assert [row[:3] for row in at.texts()] == [(5, 0, 4)]
    assert at.handler.parked_count == 0


def test_a_refusal_comes_in_the_order_of_the_log() -> None:
    at = turn_with_a_refusal()
    at.partition.commit(5)
    assert [row[0] for row in at.texts()] == [2, 6, 3, 4, 5]


def test_a_refusal_that_waits_keeps_neither_bytes_nor_keys() -> None:
    at = turn_with_a_refusal()
    (refused,) = (each for each in at.handler.parked.appends if each.refusal is not None)
    assert [(batch.data, batch.keyed) for batch in refused.batches] == [(b"", None)]
    assert refused.held_bytes == 0


def test_a_refusal_for_what_may_be_lost_is_a_loss_of_leadership() -> None:
    at = Bench().with_window()
    at.append(to(batch(b"a")))
    at.append(to(batch(b"a", since=1)))
    at.append(to(batch(b"a", since=0)))
    at.partition.append_refusal = GONE
    at.handler.on_leadership_lost()
    assert {row[1] for row in at.texts()} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert at.handler.parked_count == 0


def test_a_refusal_that_waits_for_too_long_is_a_time_out_that_may_be_tried_again() -> None:
    at = Bench().with_window()
    at.append(to(batch(b"a")))
    at.append(to(batch(b"a", since=1)))
    at.clock.move_to(6.0)
    ((_, appended), (_, refused)) = at.answers()
    assert rows_of(appended)[0].error_message == (
        "appended, but not committed in time: no majority of the voters responds"
    )
    assert rows_of(refused)[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert rows_of(refused)[0].error_message == (
        "what it depends on is not committed in time: no majority of the voters responds"
    )
    at.partition.commit(2)
    assert at.answers() == []


def test_another_leadership_remembers_nothing_of_the_one_before() -> None:
    at = Bench().with_window()
    at.append(to(batch(b"a")))
    at.partition.commit(2)
    at.handler.on_leadership_lost()
    at.partition.leader_epoch, at.partition.log_end_offset = 7, 10  # others led meanwhile
    at.texts()
    number = at.append(to(batch(b"a", since=5)))
    assert at.texts() == []
    at.partition.commit(10)
    ((found, code, _, text),) = at.texts()
    assert (found, code) == (number, REFUSED)
    assert text.startswith("[0] Read again from offset 10: ")
    at.append(to(batch(b"a", since=10)))
    at.partition.commit(11)
    assert [row[1:3] for row in at.texts()] == [(0, 10)]


def test_leadership_that_is_lost_and_won_within_a_turn_does_not_leave_a_batch_unjudged() -> None:
    at = Bench().with_window()
    at.append(to(batch(b"a")))
    at.send(to(batch(b"a", since=1)))
    at.handler.on_leadership_lost()
    at.partition.leader_epoch, at.partition.log_end_offset = 7, 10
    at.texts()
    at.end_turn()
    at.partition.commit(10)
    assert [row[1] for row in at.texts()] == [REFUSED]


# -- idempotent producers


def test_what_is_in_the_log_is_not_judged_again() -> None:
    at = Bench().with_window()
    first = batch(b"a", since=1, producer=(9, 0, 0))
    at.append(to(first))
    at.append(to(first))
    at.partition.commit(2)
    at.append(to(batch(b"a")))
    at.append(to(first))
    at.partition.commit(3)
    assert sorted(row[:3] for row in at.texts()) == [(2, 0, 1), (3, 0, 1), (4, 0, 2), (5, 0, 1)]


def test_what_another_leader_has_appended_is_not_judged_again() -> None:
    at = Bench(log_end_offset=5, committed_offset=5)
    at.producers.append(9, 0, 0, 3, 3)
    number = at.append(to(batch(b"a", since=1, producer=(9, 0, 0))))
    assert at.texts() == [(number, 0, 3, "")]


@pytest.mark.parametrize("producer_id", [0, 9])
def test_what_was_refused_is_refused_in_the_same_words_and_takes_no_sequence(
    producer_id: int,
) -> None:
    at = Bench().with_window()
    at.append(to(batch(b"a", b"b")))
    at.partition.commit(3)
    refused = batch(b"a", b"b", since=1, producer=(producer_id, 0, 0))
    at.append(to(refused))
    at.append(to(batch(b"a")))
    at.partition.commit(4)
    at.append(to(refused))
    _, once, _, again = at.texts()
    assert once[1:] == again[1:]
    assert "written at offset 1" in once[3]
    # A producer that counts on where it was, and one that begins a new epoch.
    at.append(to(batch(b"a", since=4, producer=(producer_id, 0, 0))))
    at.append(to(batch(b"a", since=5, producer=(producer_id, 1, 0))))
    at.append(to(refused))
    at.partition.commit(6)
    rows = at.texts()
    assert [row[1:3] for row in rows] == [(REFUSED, -1), (0, 4), (0, 5)]
    assert rows[0][1:] == once[1:]


def test_a_refused_batch_that_comes_again_waits_with_the_first() -> None:
    at = Bench().with_window()
    at.append(to(batch(b"a")))
    refused = batch(b"a", since=1, producer=(9, 0, 0))
    at.append(to(refused))
    at.append(to(refused))
    assert at.texts() == []
    at.partition.commit(2)
    assert sorted(row[:2] for row in at.texts()) == [(2, 0), (3, REFUSED), (4, REFUSED)]


def test_an_offset_that_the_log_did_not_have_is_refused_also_when_it_has_it() -> None:
    at = Bench().with_window()
    early = batch(b"a", since=2, producer=(9, 0, 0))
    at.append(to(early))
    at.append(to(batch(b"b")))
    at.partition.commit(2)
    at.append(to(early))
    assert sorted(row[:2] for row in at.texts()) == [(2, REFUSED), (3, 0), (4, REFUSED)]
    assert at.partition.log_end_offset == 2


# -- the window


def test_a_batch_that_was_checked_before_there_was_a_window_is_not_overlooked() -> None:
    at = Bench()
    at.send(to(batch(b"a", since=0)))
    at.send(to(batch(b"b", b"c")))  # its keys were not read
    at.send(to(batch(b"b", since=1)))
    at.send(to(batch(b"x", since=3)))
    at.end_turn()
    at.partition.commit(4)
    rows = at.texts()
    assert [row[:3] for row in sorted(rows)] == [(1, 0, 0), (2, 0, 1), (3, REFUSED, -1), (4, 0, 3)]
    assert "Read again from offset 3" in sorted(rows)[2][3]


def test_a_compressed_batch_that_does_not_unpack_is_not_appended() -> None:
    at = Bench().with_window()
    data = bytearray(batch(b"a", codec=1))
    data[61:] = b"\0" * (len(data) - 61)
    at.append(to(_sealed(data)))
    at.append(to(batch(b"x", since=1)))
    at.partition.commit(2)
    assert [row[1:3] for row in at.texts()] == [(REFUSED, -1), (0, 1)]


def _sealed(data: bytearray) -> bytes:
    from crc32c import crc32c

    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def test_a_window_is_dropped_though_nothing_is_appended() -> None:
    key = b"a key of this test alone"

    def is_kept() -> bool:
        return any(
            isinstance(each, KeyWindow) and each.newest(key) >= 0 for each in gc.get_objects()
        )

    at = Bench().with_window()
    at.clock.move_to(WINDOW_IDLE_S - 1)
    at.append(to(batch(key, since=1)))
    at.partition.commit(2)
    at.clock.move_to(WINDOW_IDLE_S + 1)
    assert is_kept()
    at.clock.move_to(2 * WINDOW_IDLE_S)
    assert not is_kept()
    assert [alarm for alarm in at.clock.alarms if alarm.at > at.clock.now] == []


def test_each_window_has_one_alarm_and_none_when_the_handler_is_closed() -> None:
    def pending(at: Bench) -> int:
        far = at.clock.now + WINDOW_IDLE_S / 2
        return len([each for each in at.clock.alarms if each.at > far])

    at = Bench().with_window()
    at.append(to(batch(b"b")))
    at.append(to(batch(b"c")))
    assert pending(at) == 1
    at.partition.commit(3)
    at.clock.move_to(2 * WINDOW_IDLE_S)
    assert pending(at) == 0
    at.with_window()
    assert pending(at) == 1
    at.handler.close()
    assert all(alarm.is_cancelled for alarm in at.clock.alarms)


def test_a_window_without_conditions_is_dropped_and_the_next_one_begins_anew() -> None:
    at = Bench().with_window()
    at.append(to(batch(b"b")))
    at.partition.commit(2)
    at.clock.move_to(WINDOW_IDLE_S + 1)
    at.append(to(batch(b"c")))
    at.partition.commit(3)
    at.append(to(batch(b"x", since=2)))
    assert "Read again from offset 3" in at.texts()[-1][3]


def test_a_long_batch_is_judged_by_what_was_appended_while_it_was_checked() -> None:
    at = Bench().with_window()
    keys = [b"key%d" % i for i in range(45_000)]
    left = at.begin(to(batch(*keys, since=1)))
    assert left is not None
    next(left)
    at.append(to(batch(b"key44999")))
    list(left)
    at.end_turn()
    at.partition.commit(2)
    assert [row[1] for row in at.texts()] == [0, REFUSED]
    assert at.partition.log_end_offset == 2


@pytest.mark.parametrize("codec", [0, 4])
def test_a_batch_of_very_many_records_is_in_the_way_of_its_keys_alone(codec: int) -> None:
    at = Bench().with_window()
    at.append(to(batch(*(b"key%d" % i for i in range(KEYS_MAX + 1)), codec=codec)))
    at.append(to(batch(b"x", since=1)))
    at.append(to(batch(b"key49999", since=1)))
    at.partition.commit(at.partition.log_end_offset)
    rows = sorted(at.texts())
    assert [row[1] for row in rows] == [0, 0, REFUSED]
    assert "its key was written at offset 50000, " in rows[-1][3]


def test_keys_count_also_if_the_window_came_while_their_batch_was_checked() -> None:
    at = Bench()
    left = at.begin(to(batch(*(b"key%d" % i for i in range(45_000)))))
    assert left is not None
    next(left)
    at.with_window()
    list(left)
    at.end_turn()
    at.append(to(batch(b"x", since=1)))
    at.append(to(batch(b"key44999", since=1)))
    at.partition.commit(at.partition.log_end_offset)
    rows = at.texts()
    assert [row[1] for row in rows] == [0, REFUSED, 0]
    assert "its key was written at offset 45000" in rows[1][3]


@pytest.mark.parametrize("codec", range(5))
def test_keys_are_not_kept_with_what_waits_for_its_commit(codec: int) -> None:
    at = Bench().with_window()
    at.append(to(batch(b"x", b"y", since=1, codec=codec)))
    at.append(to(batch(b"a", b"b", codec=codec)))
    waiting = [each for append in at.handler.parked.appends for each in append.batches]
    assert [each.keyed for each in waiting] == [None, None]


# -- what cannot be


@pytest.mark.parametrize("codec", range(5))
def test_a_condition_behind_the_first_record_is_refused(codec: int) -> None:
    header = (IF_UNCHANGED_SINCE, b"0")
    records = [Record(timestamp=1, key=b"a"), Record(timestamp=1, key=b"b", headers=(header,))]
    for at in (Bench(), Bench().with_window()):
        end_offset = at.partition.log_end_offset
        at.append(to(build_batch(records, codec=codec)))
        ((_, code, _, text),) = at.texts()
        assert (code, at.partition.log_end_offset) == (REFUSED, end_offset)
        assert "[1] Record 1: the header quorumd.if-unchanged-since belongs to the first" in text


@pytest.mark.parametrize("acks", [0, 1])
def test_a_condition_needs_an_answer(acks: int) -> None:
    at = Bench()
    at.append(to(batch(b"a", since=0), acks=acks))
    at.partition.commit(at.partition.log_end_offset)
    assert at.partition.log_end_offset == acks
    if not acks:
        assert at.answers() == [
            (1, "a batch without acknowledgement was refused: INVALID_RECORD"),
        ]


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_without_a_condition_needs_none(codec: int) -> None:
    for at in (Bench(), Bench().with_window()):
        end_offset = at.partition.log_end_offset
        at.append(to(batch(b"a", b"b", codec=codec), acks=0))
        at.partition.commit(end_offset + 2)
        assert [answer for _, answer in at.answers()] == [None]
        assert at.partition.log_end_offset == end_offset + 2


def test_an_offset_above_the_log_end_is_told_when_a_later_record_is_committed() -> None:
    at = Bench(log_end_offset=8, committed_offset=8)
    at.append(to(batch(b"a", since=9)))
    assert at.texts() == []
    at.append(to(batch(b"b")))
    assert at.texts() == []
    at.partition.commit(9)
    (_, code, _, text), _ = sorted(at.texts())
    assert code == REFUSED
    assert "[0] Record 0: no offset above 8 is known yet" in text


def test_or_when_a_deposed_leader_would_have_resigned() -> None:
    at = Bench(log_end_offset=8, committed_offset=8)
    at.append(to(batch(b"a", since=9)))
    at.clock.move_to(2.9)
    assert at.texts() == []
    at.clock.move_to(3.0)
    ((_, code, _, text),) = at.texts()
    assert code == REFUSED
    assert "no offset above 8" in text
    at.partition.commit(at.partition.log_end_offset)
    assert at.partition.log_end_offset == 8
    assert at.handler.parked_count == 0


def test_it_is_told_at_the_next_look_after_that() -> None:
    at = Bench(log_end_offset=8, committed_offset=8)
    at.append(to(batch(b"x")))
    at.clock.move_to(0.05)
    at.append(to(batch(b"a", since=10)))
    at.clock.move_to(3.0)
    assert at.texts() == []
    at.clock.move_to(3.2)
    ((_, code, _, text),) = at.texts()
    assert code == REFUSED
    assert "no offset above 9" in text


def test_what_is_sent_again_meanwhile_waits_no_longer_for_that() -> None:
    at = Bench(log_end_offset=8, committed_offset=8)
    above = batch(b"a", since=9, producer=(7, 0, 0))
    for began_s in (0.0, 2.0, 3.5):
        at.clock.move_to(began_s)
        at.append(to(above))
    assert [row[:2] for row in at.texts()] == [(1, REFUSED), (2, REFUSED)]
    at.clock.move_to(3.7)
    assert [row[:2] for row in at.texts()] == [(3, REFUSED)]


def test_a_deposed_leader_does_not_say_that_an_offset_is_above_the_log_end() -> None:
    at = Bench(log_end_offset=8, committed_offset=8)
    at.append(to(batch(b"a", since=9)))
    at.handler.on_leadership_lost()
    ((_, code, _, _),) = at.texts()
    assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_wrong_condition_is_refused_and_the_next_request_is_served() -> None:
    at = Bench()
    record = Record(timestamp=1, key=b"a", headers=((IF_UNCHANGED_SINCE, b"now"),))
    at.append(to(build_batch([record])))
    at.append(to(batch(b"a")))
    at.partition.commit(1)
    rows = at.texts()
    assert [row[:3] for row in rows] == [(1, REFUSED, -1), (2, 0, 0)]
    assert "must be an offset from 0 on in decimal digits" in rows[0][3]
