"""The checker of conditional appends: sound histories pass, each kind of broken one is found."""

from __future__ import annotations

import pytest

from quorumd.wire.records import Record
from simulation.checkers.conditions import check_conditions, check_refusal
from simulation.history.appends import Append, Refusal, Wanted
from simulation.history.facts import Facts
from simulation.history.replica import Batch, Identity
from simulation.violation import Violation


class History:
    """A committed log of batches with keys, the conditional ones among them."""

    def __init__(self) -> None:
        self.facts = Facts()

    def append(
        self, *keys: bytes | None, wanted: Wanted | None = None, is_in_log: bool = True
    ) -> Append:
        facts = self.facts
        identity = Identity(len(facts.appends), 0, -1, -1)
        append = Append("client", identity, len(keys), False, 0, wanted=wanted)
        facts.appends.append(append)
        facts.records[identity] = [Record(key=key) for key in keys]
        if is_in_log:
            base = facts.committed_end_offset
            facts.committed.append(Batch(base, base + len(keys), 1, identity))
        return append

    def refused(self, wanted: Wanted, key: bytes | None, offset: int) -> None:
        append = self.append(*wanted.keys, wanted=wanted, is_in_log=False)
        append.refusal = Refusal(0, key, offset)
        check_refusal(self.facts, append)


@pytest.fixture
def history() -> History:
    """a at 0, b at 1, a record without key at 2, c and a at 3 and 4."""
    history = History()
    history.append(b"a")
    history.append(b"b", None)
    history.append(b"c", b"a")
    return history


def test_a_history_in_order_is_sound(history: History) -> None:
    history.append(b"b", wanted=Wanted(2, (b"b", b"x")))
    history.refused(Wanted(4, (b"x", b"a")), b"a", 4)
    history.refused(Wanted(3, (b"b",)), None, 5)
    check_conditions(history.facts)


def test_an_append_over_a_changed_key_is_found(history: History) -> None:
    history.append(b"x", wanted=Wanted(4, (b"x", b"a")))
    with pytest.raises(Violation, match="b'a' was written at 4"):
        check_conditions(history.facts)


def test_a_refused_batch_in_the_log_is_found(history: History) -> None:
    append = history.append(b"x", wanted=Wanted(5, (b"x",)))
    append.refusal = Refusal(0, b"a", 4)
    with pytest.raises(Violation, match="was refused, and is in the log at 5"):
        check_conditions(history.facts)


@pytest.mark.parametrize(
    ("since", "keys", "key", "offset", "match"),
    [
        (0, (b"a",), b"a", 5, "what is committed ends at 5"),
        (4, (b"b",), b"b", 1, "refused for a record there"),
        (0, (b"b",), b"b", 2, "the key of the record there is None"),
        (0, (b"b",), b"b", 3, "the key of the record there is b'c'"),
        (0, (b"b",), b"a", 4, "the key of the record there is b'a'"),
        (2, (b"b",), None, 6, "5 is the end"),
        (2, (b"b",), None, 2, "read again from there"),
    ],
)
def test_a_refusal_without_cause_is_found(
    history: History, since: int, keys: tuple[bytes, ...], key: bytes, offset: int, match: str
) -> None:
    with pytest.raises(Violation, match=match):
        history.refused(Wanted(since, keys), key, offset)
