"""The order of a log: offsets follow each other without a gap, epochs never fall.

Every reader and writer of batches asks here what is wrong with one that is out of order. Where a loop
runs once for each batch of a log it compares the offset and the epoch in place, which costs no call, and
asks only about a batch that is not the plain next one of the same epoch.
`quorumd.pipeline.parse.headers` has the same rule for arrays of headers. A test lists these places
(`tests/architecture/test_sequence_check.py`).
"""

from __future__ import annotations

from quorumd.wire.batch_header import BatchHeader


def sequence_problem(header: BatchHeader, next_offset: int, last_epoch: int | None) -> str:
    """Reason why a batch can't be the one at `next_offset`, behind one of `last_epoch` (None: behind none).

    "" if it can.
    """
    return offset_problem(header, next_offset) or epoch_problem(header.epoch, last_epoch)


def snapshot_problem(header: BatchHeader, next_offset: int, epoch: int) -> str:
    """Reason why a batch can't be the one at `next_offset` of a snapshot whose id has `epoch`; "" if it can.

    The batches of a snapshot count offsets of their own from 0, and all of them have its epoch.
    Source: KIP-630.
    """
    if header.epoch != epoch:
        return f"a batch of epoch {header.epoch} in a snapshot of epoch {epoch}"
    return offset_problem(header, next_offset)


def segment_problem(base_offset: int, next_offset: int) -> str:
    """The fault of a segment that begins at `base_offset`, behind one that ends at `next_offset`.

    The latter is an exclusive end; "" if they fit.
    """
    if base_offset == next_offset:
        return ""
    what = "a gap" if base_offset > next_offset else "an overlap"
    return (
        f"{what} between segments: this one begins at offset {base_offset}, the one before ends at"
        f" {next_offset}"
    )


def offset_problem(header: BatchHeader, next_offset: int) -> str:
    """The fault of the offsets of a batch that has to begin at `next_offset`; "" if there is none."""
    if header.base_offset != next_offset:
        return f"a batch with offset {header.base_offset} where {next_offset} must follow"
    if header.last_offset_delta < 0:
        return f"a batch whose last offset is {header.last_offset_delta} from its first"
    return ""


def epoch_problem(epoch: int, last_epoch: int | None) -> str:
    """The fault of a batch of `epoch` behind one of `last_epoch`; "" if there is none.

    None is behind none: -1 would be the epoch of a batch that no leader has stamped.
    """
    if epoch < 0:
        return f"a batch of epoch {epoch}: no leader has stamped it"
    if last_epoch is not None and epoch < last_epoch:
        return f"a batch of epoch {epoch} after one of epoch {last_epoch}"
    return ""
