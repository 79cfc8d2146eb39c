"""Planted bugs in conditional appends."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from quorumd.server.model import conditions
from quorumd.server.model.conditions import ConditionJudge, KeyWindow
from quorumd.server.model.producer_state import ProducerState
from quorumd.server.requests import conditional_append, produce
from quorumd.server.requests.parked_appends import ParkedAppends
from quorumd.server.requests.pending_produce import PendingAppend, PendingBatch
from quorumd.server.requests.produce import ProduceHandler
from quorumd.wire.batch_header import CODEC_MASK
from quorumd.wire.conditions import KeyedBatch
from simulation.planted.table import LOST_RESPONSES, Plant, planted

SERIALIZABLE = "conditional appends are strictly serializable"


@planted(
    "conditions are judged from their own offset on",
    "The window is opened late: what was written between the condition and its opening is not known to be"
    " missing (docs/protocol.md, append if unchanged).",
    caught_by=[SERIALIZABLE],
    seeds=48,
)
def _window_opened_late(plant: Plant) -> None:
    right = ConditionJudge.judge

    def wrong(judge: ConditionJudge, keyed: KeyedBatch, *rest: Any) -> Any:
        if judge.window is None and keyed.condition is not None:
            judge.window = KeyWindow(keyed.condition.since, judge._bytes_max)
        return right(judge, keyed, *rest)

    plant(ConditionJudge, "judge", wrong)


@planted(
    "conditions are refused for what is truncated",
    "A refusal leaves at once, not when the record that it names is committed.",
    caught_by=[SERIALIZABLE],
    seeds=48,
)
def _refused_for_what_is_truncated(plant: Plant) -> None:
    right = ParkedAppends.park_duplicate

    def wrong(parked: ParkedAppends, pending: PendingAppend) -> None:
        if pending.refusal is None:
            right(parked, pending)
        else:
            parked._respond(pending)

    plant(ParkedAppends, "park_duplicate", wrong)


@planted(
    "conditions are judged by hashes of keys",
    "Two keys with the same hash are taken for one.",
    caught_by=[SERIALIZABLE],
    seeds=48,
)
def _hashes_of_keys(plant: Plant) -> None:
    note, newest = KeyWindow.note, KeyWindow.newest

    def hashed(key: bytes | None) -> bytes | None:
        return None if key is None else b"%d" % (sum(key) % 16)

    def wrong_note(window: KeyWindow, keys: Any, base_offset: int) -> None:
        note(window, [hashed(key) for key in keys], base_offset)

    plant(KeyWindow, "note", wrong_note)
    plant(KeyWindow, "newest", lambda window, key: newest(window, hashed(key) or b""))


@planted(
    "conditions are judged on arrival",
    "The condition is judged when the batch is checked, not when it gets its offset.",
    caught_by=[SERIALIZABLE],
    seeds=96,
)
def _judged_on_arrival(plant: Plant) -> None:
    right_add, right_refused = ProduceHandler._add_to_turn, conditional_append.refused_append
    verdicts: dict[int, PendingAppend | None] = {}

    def add(handler: ProduceHandler, batch: PendingBatch) -> None:
        end_offset = handler._view.log_end_offset
        data, keyed = batch.data, batch.keyed
        verdicts[id(batch)] = right_refused(
            batch, handler._judge, handler._producers, end_offset, handler._runtime
        )
        batch.data, batch.keyed = data, keyed  # Kept until the verdict is asked for.
        right_add(handler, batch)

    def refused(batch: PendingBatch, *rest: Any) -> PendingAppend | None:
        return verdicts.pop(id(batch))

    plant(ProduceHandler, "_add_to_turn", add)
    plant(produce, "refused_append", refused)


@planted(
    "duplicates are judged again",
    "A batch that is in the log is judged when it comes again, and refused for its own records (KIP-98: a"
    " duplicate gets the first response).",
    caught_by=[SERIALIZABLE],
    seeds=96,
    faults=LOST_RESPONSES | frozenset({"duplicate"}),
)
def _duplicates_are_judged(plant: Plant) -> None:
    right = conditional_append.refused_append

    def wrong(batch: PendingBatch, judge: ConditionJudge, *rest: Any) -> PendingAppend | None:
        with patch.object(ProducerState, "check", lambda *args: None):
            return right(batch, judge, *rest)

    plant(produce, "refused_append", wrong)


@planted(
    "windows outlive leadership",
    "A leader that comes back judges by what it knew before, without what others have appended meanwhile.",
    caught_by=[SERIALIZABLE],
    seeds=192,
    faults=frozenset({"minority partition"}),
)
def _windows_outlive_leadership(plant: Plant) -> None:
    plant(ConditionJudge, "close", lambda judge: None)


@planted(
    "keys of compressed batches do not count",
    "A key written in a compressed batch conflicts with no condition.",
    caught_by=[SERIALIZABLE],
    seeds=48,
)
def _compressed_keys_do_not_count(plant: Plant) -> None:
    right = ProduceHandler._add_to_turn

    def wrong(handler: ProduceHandler, batch: PendingBatch) -> None:
        keyed = batch.keyed
        if keyed is not None and keyed.condition is None and batch.header.attributes & CODEC_MASK:
            batch.keyed = keyed._replace(keys=[])
        right(handler, batch)

    plant(ProduceHandler, "_add_to_turn", wrong)


@planted(
    "named keys do not count",
    "A key that the batch names and does not write is not checked.",
    caught_by=[SERIALIZABLE],
    seeds=48,
)
def _named_keys_do_not_count(plant: Plant) -> None:
    right = conditions._oldest_conflict

    def wrong(window: KeyWindow, keys: Any, condition: Any) -> Any:
        return right(window, keys, condition._replace(named=()))

    plant(conditions, "_oldest_conflict", wrong)


@planted(
    "a full window forgets silently",
    "The older half of the window is let go of, and its start stays.",
    caught_by=[SERIALIZABLE],
    seeds=192,
)
def _forgets_silently(plant: Plant) -> None:
    right = KeyWindow.note

    def wrong(window: KeyWindow, keys: Any, base_offset: int) -> None:
        start_offset = window.start_offset
        right(window, keys, base_offset)
        window.start_offset = start_offset

    plant(KeyWindow, "note", wrong)
