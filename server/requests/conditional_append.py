"""Judges a conditional batch at the moment in which it gets its offset."""

from __future__ import annotations

from quorumd.server.model.conditions import ConditionJudge, ConditionRefused
from quorumd.server.model.producer_state import ProducerState
from quorumd.server.model.runtime import Runtime
from quorumd.server.requests.pending_produce import PartitionResult, PendingAppend, PendingBatch
from quorumd.wire.error_codes import ErrorCode


def refused_append(
    batch: PendingBatch,
    judge: ConditionJudge,
    producers: ProducerState,
    offset: int,
    runtime: Runtime,
) -> PendingAppend | None:
    """The parked refusal of a conditional batch whose keys have changed; None if it is to be appended.

    A batch that an idempotent producer has in the log already, or sends out of order, is not judged: it has
    results of its own.
    """
    keyed, record_count = batch.keyed, batch.record_count
    if keyed is None or keyed.condition is None:
        return None
    identity = batch.identity
    refused: ConditionRefused | None = None
    if identity is not None:
        refused = judge.remembered(identity)
        producer_id, epoch, sequence, _ = identity
        if refused is None and producers.check(producer_id, epoch, sequence, record_count):
            return None
    now = runtime.monotonic_s()
    if refused is None:
        refused = judge.judge(keyed, offset, now, identity)
    if refused is None:
        return None
    message, record_index, end_offset, sure_s = refused
    result = PartitionResult(ErrorCode.INVALID_RECORD, message, record_index)
    batch.base_offset = end_offset - record_count
    batch.let_go()
    pending = PendingAppend([batch], now, end_offset, 0, result)
    pending.sure_s = sure_s
    return pending
