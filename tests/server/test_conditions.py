"""The window of keys, and what is judged by it: compared with a log that forgets nothing."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from quorumd.server.model.conditions import (
    REMEMBERED_REFUSALS,
    WINDOW_IDLE_S,
    ConditionJudge,
    ConditionRefused,
    KeyWindow,
)
from quorumd.wire.conditions import Condition, KeyedBatch, Keys, ManyKeys

MIB = 1 << 20


def conditional(since: int, *keys: bytes | None, named: tuple[bytes, ...] = ()) -> KeyedBatch:
    return KeyedBatch(list(keys), Condition(since, named))


def many(*keys: bytes | None) -> KeyedBatch:
    places = {key: place for place, key in enumerate(keys)}
    return KeyedBatch(None, None, ManyKeys(places, sum(map(len, filter(None, keys)))))


class JudgedLog:
    """A log whose records are keys, with its judge, and a memory of everything to compare it with."""

    def __init__(self, end_offset: int = 0, bytes_max: int = 64 * MIB) -> None:
        self.judge = ConditionJudge(bytes_max)
        self.base = end_offset
        self.keys: Keys = []

    @property
    def end_offset(self) -> int:
        return self.base + len(self.keys)

    def append(self, *keys: bytes | None, is_read: bool = True, are_many: bool = False) -> None:
        offset = self.end_offset
        self.keys += keys
        if self.judge.window is not None:
            keyed = KeyedBatch(list(keys), None) if is_read else None
            if are_many:
                keyed = many(*keys)
            self.judge.note(keyed, offset, self.end_offset)

    def try_append(self, keyed: KeyedBatch) -> ConditionRefused | None:
        refused = self.judge.judge(keyed, self.end_offset, 0.0, None)
        if refused is None:
            assert keyed.keys is not None
            self.append(*keyed.keys)
        return refused

    def conflicts(self, keyed: KeyedBatch) -> dict[int, bytes | None]:
        assert keyed.condition is not None
        assert keyed.keys is not None
        wanted = {key for key in (*keyed.keys, *keyed.condition.named) if key is not None}
        newest = {key: self.base + i for i, key in enumerate(self.keys)}
        since = keyed.condition.since
        return {newest[key]: key for key in wanted if newest.get(key, -1) >= since}


def test_the_first_condition_opens_the_window_where_the_log_ends() -> None:
    log = JudgedLog(end_offset=100)
    refused = log.try_append(conditional(99, b"k"))
    assert refused is not None
    assert refused.message.startswith("Read again from offset 100: ")
    assert refused.end_offset == 100
    assert log.try_append(conditional(100, b"k")) is None
    assert log.judge.window is not None
    assert log.judge.window.start_offset == 100


def test_a_key_that_was_written_since_refuses_the_whole_batch() -> None:
    log = JudgedLog()
    assert log.try_append(conditional(0, b"a")) is None
    log.append(b"b", b"c", None)
    refused = log.try_append(conditional(1, b"x", b"c", b"b"))
    assert refused is not None
    # The one that is committed first, so that nobody waits longer than for the cause.
    assert refused == ConditionRefused(
        "Record 2 conflicts: its key was written at offset 1, and must not have been since 1."
        " The key is 'b'.",
        2,
        2,
    )
    assert log.end_offset == 4
    assert log.try_append(conditional(2, b"b")) is None
    assert log.try_append(conditional(3, b"c")) is None


def test_a_named_key_counts_as_one_that_is_written() -> None:
    log = JudgedLog()
    assert log.try_append(conditional(0, b"a")) is None
    refused = log.try_append(conditional(0, b"x", None, named=(b"y", b"a")))
    assert refused is not None
    assert refused.message.startswith("Named key 1 conflicts: its key was written at offset 0, ")
    assert refused.record_index == 0


def test_records_without_a_key_are_in_nobodys_way() -> None:
    log = JudgedLog()
    assert log.try_append(conditional(0, b"a", None)) is None
    log.append(None, None)
    assert log.try_append(conditional(1, b"x", None)) is None


def test_an_offset_above_the_log_end_is_refused() -> None:
    refused = JudgedLog(end_offset=5).try_append(conditional(6, b"k"))
    assert refused is not None
    assert "no offset above 5" in refused.message
    # A deposed leader must not say so: it waits until it knows that it is none.
    assert (refused.end_offset, refused.sure_s) == (6, 3.0)


def test_a_batch_whose_keys_were_not_read_begins_the_window_anew() -> None:
    log = JudgedLog()
    assert log.try_append(conditional(0, b"a")) is None
    log.append(b"b", b"c", is_read=False)
    refused = log.try_append(conditional(1, b"x"))
    assert refused is not None
    assert refused.message.startswith("Read again from offset 3: ")
    assert log.try_append(conditional(3, b"x")) is None


def test_the_keys_of_a_batch_with_many_count_beside_those_of_others() -> None:
    log = JudgedLog()
    assert log.try_append(conditional(0, b"a")) is None
    log.append(b"b", b"c", None, b"b", are_many=True)
    log.append(b"c")
    assert log.try_append(conditional(1, b"x")) is None
    for key, offset in ((b"b", 4), (b"c", 5)):
        refused = log.try_append(conditional(offset, key))
        assert refused is not None
        assert f"its key was written at offset {offset}, " in refused.message
    log.append(b"c", are_many=True)
    refused = log.try_append(conditional(7, b"c"))
    assert refused is not None
    assert "its key was written at offset 7, " in refused.message


def test_more_keys_than_half_a_window_holds_begin_it_anew() -> None:
    log = JudgedLog(bytes_max=2 * 4 * 201)
    assert log.try_append(conditional(0, b"a")) is None
    log.append(b"b", b"c", b"d", b"e", are_many=True)
    assert log.try_append(conditional(1, b"x")) is None
    log.append(b"b", b"c", b"d", b"e", b"f", are_many=True)
    refused = log.try_append(conditional(6, b"x"))
    assert refused is not None
    assert refused.message.startswith("Read again from offset 11: ")


def test_a_window_that_is_not_needed_is_dropped() -> None:
    log = JudgedLog()
    assert log.try_append(conditional(0, b"a")) is None
    log.judge.close_if_idle(WINDOW_IDLE_S - 0.001)
    assert log.judge.window is not None
    log.judge.close_if_idle(WINDOW_IDLE_S)
    assert log.judge.window is None


def test_a_refusal_is_remembered_until_leadership_ends_and_only_so_many() -> None:
    judge = ConditionJudge(MIB)
    judge.judge(conditional(5, b"k"), 5, 0.0, None)
    identities = [(1, 0, i, b"digest") for i in range(REMEMBERED_REFUSALS + 1)]
    refused = judge.judge(conditional(4, b"k"), 5, 0.0, identities[0])
    assert refused is not None
    assert judge.remembered(identities[0]) == refused
    assert judge.remembered((1, 0, 0, b"another")) is None
    for identity in identities[1:]:
        judge.judge(conditional(4, b"k"), 5, 0.0, identity)
    assert judge.remembered(identities[0]) is None
    assert judge.remembered(identities[-1]) is not None
    judge.close()
    assert judge.remembered(identities[-1]) is None
    assert judge.window is None


@pytest.mark.parametrize("seed", range(40))
def test_judged_as_by_a_log_that_forgets_nothing_or_sent_back_to_read(seed: int) -> None:
    """With a window so small that it is always full. Never admitted against the log; refused only for what
    is in it; and who has read what it is told to read is judged."""
    random = Random(seed)
    log = JudgedLog(random.choice([0, 1000]), bytes_max=random.choice([2_000, 20_000, MIB]))
    log.append(*(b"%d" % random.randrange(9) for _ in range(random.randrange(30))))
    outcomes = {"admitted": 0, "conflict": 0, "read again": 0}
    for _ in range(600):
        keys = [random.choice([None, b"%d" % random.randrange(60)]) for _ in range(3)]
        if random.random() < 0.6:
            log.append(*keys, is_read=random.random() < 0.98, are_many=random.random() < 0.2)
            continue
        since = max(log.end_offset - random.randrange(0, 25), 0)
        keyed = conditional(since, *keys, named=(b"%d" % random.randrange(60),))
        conflicts, end_offset = log.conflicts(keyed), log.end_offset
        refused = log.try_append(keyed)
        if refused is None:
            outcomes["admitted"] += 1
            assert not conflicts
            assert log.end_offset == end_offset + 3
            continue
        assert log.end_offset == end_offset
        if "conflicts" in refused.message:
            outcomes["conflict"] += 1
            assert refused.end_offset - 1 in conflicts
        else:
            outcomes["read again"] += 1
            assert since < refused.end_offset <= end_offset
            again = conditional(refused.end_offset, *keys)
            told = log.try_append(again)
            assert told is None or "conflicts" in told.message
    assert outcomes["admitted"] > 20
    assert outcomes["conflict"]
    assert outcomes["read again"]


@pytest.mark.long
@pytest.mark.parametrize(("size", "per_batch"), [(8, 1), (8, 500), (1_000, 50), (60_000, 3)])
def test_a_window_keeps_to_its_memory(size: int, per_batch: int) -> None:
    """Counted at no less than it is, whatever the keys; and it goes back far where keys repeat."""
    bytes_max = 4 * MIB
    tracemalloc.start()
    try:
        window = KeyWindow(0, bytes_max)
        offset, highest = 0, 0
        while offset < 40_000 and window.start_offset < 3 * bytes_max // (200 + size):
            keys = [(b"%d" % (offset + i)).rjust(size, b"-") for i in range(per_batch)]
            window.note(keys, offset)
            offset += per_batch
            highest = max(highest, tracemalloc.get_traced_memory()[0])
        del keys
    finally:
        tracemalloc.stop()
    assert window.start_offset > 0, "it was full"
    assert highest < bytes_max + per_batch * (size + 200)
    assert window.newest((b"%d" % (offset - 1)).rjust(size, b"-")) == offset - 1


def test_keys_that_repeat_take_their_memory_once() -> None:
    window = KeyWindow(0, MIB)
    for offset in range(0, 200_000, 100):
        window.note([b"key%d" % i for i in range(100)], offset)
    assert window.start_offset == 0
    assert window.newest(b"key7") == 199_907


def test_one_long_key_does_not_fill_the_window_for_all_of_its_batch() -> None:
    window = KeyWindow(0, 2 * MIB)
    window.note([b"k" * 60_000, *(b"key%d" % i for i in range(2_000))], 0)
    assert window.start_offset == 0
    assert window.newest(b"key7") == 8
