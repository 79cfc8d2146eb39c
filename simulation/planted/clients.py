"""Planted bugs in responses to clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from quorumd.raft import check_quorum
from quorumd.raft.core import Core
from quorumd.raft.roles import Leader
from quorumd.raft.types import OffsetAndEpoch
from quorumd.server import node as server_node
from quorumd.server.disk.recovered_log import RecoveredLog
from quorumd.server.disk.storage_adapter import StorageAdapter
from quorumd.server.model import producer_state
from quorumd.server.model.producer_state import ProducerState
from quorumd.server.partition.raft_view import RaftPartitionView
from quorumd.server.requests import fetch
from quorumd.server.requests.fetch import ConsumerFetch, FetchHandler, PartitionFetch
from quorumd.server.requests.offsets import OffsetsHandler
from quorumd.server.requests.parked_appends import ParkedAppends
from quorumd.server.requests.produce import ProduceHandler
from quorumd.storage.filesystem import Buffer
from quorumd.wire.batch_header import BatchHeader
from quorumd.wire.error_codes import ErrorCode
from simulation.planted.table import LOST_RESPONSES, Plant, planted


@planted(
    "consumers see uncommitted records",
    "A consumer's fetch reads up to the log end (Kafka: nothing above the high watermark).",
    caught_by=["reads are prefixes of the committed log", "reads are fresh"],
    seeds=36,
)
def _consumers_see_uncommitted(plant: Plant) -> None:
    right = FetchHandler._read

    def wrong(handler: FetchHandler, fetch: ConsumerFetch, slot: PartitionFetch) -> None:
        end_offset = RaftPartitionView.log_end_offset
        with patch.object(RaftPartitionView, "committed_offset", end_offset):
            right(handler, fetch, slot)

    plant(FetchHandler, "_read", wrong)


@planted(
    "appends are acknowledged before they commit",
    "The response to Produce leaves at the append, not at the high watermark (Kafka, acks=all).",
    caught_by=["acknowledged appends are present exactly once"],
    seeds=5,
)
def _acknowledged_at_append(plant: Plant) -> None:
    right = ProduceHandler._end_turn

    def wrong(handler: ProduceHandler) -> None:
        right(handler)
        handler.parked.on_high_watermark(handler._view.log_end_offset)

    plant(ProduceHandler, "_end_turn", wrong)


@planted(
    "producers are forgotten at a restart",
    "A start does not rebuild the producer state from the log (KIP-98).",
    caught_by=[
        "acknowledged appends are present exactly once",
        "an idempotent producer is not refused",
    ],
    seeds=24,
    faults=frozenset({"crash at an effect", "reset"}),
)
def _producers_are_forgotten(plant: Plant) -> None:
    right = server_node.open_log

    def wrong(*args: Any) -> RecoveredLog:
        return replace(right(*args), producers=ProducerState())

    plant(server_node, "open_log", wrong)


@planted(
    "followers do not note producers",
    "Fetched batches leave the producer state as it is (KIP-98: every replica keeps the same).",
    caught_by=[
        "acknowledged appends are present exactly once",
        "an idempotent producer is not refused",
    ],
    seeds=15,
    faults=LOST_RESPONSES,
)
def _followers_do_not_note(plant: Plant) -> None:
    right = StorageAdapter.append_fetched

    def note(producers: ProducerState, header: BatchHeader) -> None:
        """Forgets it."""

    def wrong(adapter: StorageAdapter, effect: Any) -> None:
        with patch.object(ProducerState, "note", note):
            right(adapter, effect)

    plant(StorageAdapter, "append_fetched", wrong)


@planted(
    "truncated producers are remembered",
    "A truncation does not take back what its batches did to the producer state (KIP-98).",
    caught_by=[
        "the producer state follows from the log",
        "acknowledged appends are present exactly once",
        "an idempotent producer is not refused",
    ],
    seeds=12,
    faults=frozenset({"deposed leader"}),
)
def _truncated_producers_are_remembered(plant: Plant) -> None:
    plant(ProducerState, "truncate", lambda producers, end_offset: True)


@planted(
    "leader serves before a commit of its epoch",
    "A new leader responds to consumers at once (KIP-595: not before a record of its epoch is committed).",
    caught_by=["only a leader with a commit in its epoch serves clients"],
    seeds=24,
)
def _serves_before_a_commit(plant: Plant) -> None:
    plant(RaftPartitionView, "has_committed_in_epoch", RaftPartitionView.is_leader)


@planted(
    "followers serve consumers",
    "Every replica takes every consumer for a debugging one (Kafka: only the leader responds).",
    caught_by=["only a leader with a commit in its epoch serves clients"],
    seeds=12,
)
def _followers_serve(plant: Plant) -> None:
    plant(fetch, "is_for_debugging", lambda message, version: True)


@planted(
    "leader without a quorum stays",
    "No leader resigns for lack of fetches, so a deposed one serves what is long outdated (KIP-595, leader"
    " progress timeout).",
    caught_by=["reads are fresh"],
    seeds=24,
    faults=frozenset({"isolate one", "minority partition"}),
)
def _leader_without_a_quorum_stays(plant: Plant) -> None:
    def wrong(core: Core, leader: Leader) -> bool:
        leader.check_quorum_deadline_ms = core.now_ms + check_quorum.check_quorum_ms(core)
        return False

    plant(check_quorum, "is_quorum_lost", wrong)


@planted(
    "end of the committed log is out of range",
    "A consumer that has read everything gets the error that its offset does not exist.",
    caught_by=["what is committed is in range"],
    seeds=24,
)
def _end_is_out_of_range(plant: Plant) -> None:
    right = FetchHandler._serve

    def wrong(handler: FetchHandler, asked: ConsumerFetch) -> None:
        slot = asked.slot
        assert slot is not None
        if slot.asked.fetch_offset == handler._view.committed_offset:
            slot.error = ErrorCode.OFFSET_OUT_OF_RANGE
            handler._respond(asked)
        else:
            right(handler, asked)

    plant(FetchHandler, "_serve", wrong)


@planted(
    "timestamps are looked up among uncommitted records",
    "ListOffsets by timestamp finds what is above the high watermark (KIP-79: what consumers can read).",
    caught_by=["looked up offsets are those of the committed log"],
    seeds=60,
    faults=frozenset({"isolate one", "minority partition"}),
)
def _looked_up_among_uncommitted(plant: Plant) -> None:
    right = OffsetsHandler._look_up

    def wrong(
        handler: OffsetsHandler,
        timestamp: int,
        bounds: tuple[int, int],
        unwritten: Sequence[Buffer],
    ) -> Any:
        return right(handler, timestamp, (bounds[0], handler._view.log_end_offset), unwritten)

    plant(OffsetsHandler, "_look_up", wrong)


@planted(
    "epochs end one record late",
    "OffsetForLeaderEpoch gives the first offset behind the next epoch's first record (KIP-320).",
    caught_by=["looked up offsets are those of the committed log"],
    seeds=12,
)
def _epochs_end_late(plant: Plant) -> None:
    right = RaftPartitionView.end_offset_for

    def wrong(view: RaftPartitionView, epoch: int) -> OffsetAndEpoch:
        found = right(view, epoch)
        return found._replace(offset=min(found.offset + 1, view.log_end_offset))

    plant(RaftPartitionView, "end_offset_for", wrong)


@planted(
    "old epochs of producers append",
    "A batch of an epoch that its producer has left is appended (KIP-98: INVALID_PRODUCER_EPOCH).",
    caught_by=["a fenced producer appends nothing", "a producer's batches are in sequence"],
    seeds=12,
)
def _old_epochs_append(plant: Plant) -> None:
    right = ProducerState.check

    def wrong(
        producers: ProducerState, producer_id: int, epoch: int, first_sequence: int, count: int
    ) -> Any:
        known = producers.remembered().get(producer_id)
        if known is not None and 0 <= epoch < known.epoch:
            return None
        return right(producers, producer_id, epoch, first_sequence, count)

    plant(ProducerState, "check", wrong)


@planted(
    "only the last batch of a producer is remembered",
    "A repetition of an earlier one of several batches under way is no duplicate (KIP-98: of the last five).",
    caught_by=["an idempotent producer is not refused"],
    seeds=24,
    faults=LOST_RESPONSES,
)
def _only_the_last_is_remembered(plant: Plant) -> None:
    plant(producer_state, "REMEMBERED_BATCHES", 1)


@planted(
    "batches that are late stay counted",
    "A batch whose response was a time-out counts as uncommitted for ever, up to the limit (Kafka has none).",
    caught_by=["liveness"],
    seeds=36,
    faults=frozenset({"isolate one", "minority partition", "slow disk", "stalled disk"}),
)
def _late_batches_stay_counted(plant: Plant) -> None:
    right = ParkedAppends._sweep

    def wrong(parked: ParkedAppends) -> None:
        right(parked)
        for append in parked.appends:
            if all(batch.has_response for batch in append.batches):
                append.held_bytes = 0

    plant(ParkedAppends, "_sweep", wrong)
