"""Planted bugs in answers to clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from quorumd.server import node as server_node
from quorumd.server.disk.recovered_log import RecoveredLog
from quorumd.server.disk.storage_adapter import StorageAdapter
from quorumd.server.model.producer_state import ProducerState
from quorumd.server.partition.raft_view import RaftPartitionView
from quorumd.server.requests.fetch import ConsumerFetch, FetchHandler, PartitionFetch
from quorumd.server.requests.produce import ProduceHandler
from quorumd.wire.batch_header import BatchHeader
from simulation.planted.table import LOST_ANSWERS, Plant, planted


@planted(
    "consumers see uncommitted records",
    "A consumer's fetch reads up to the log end (Kafka: nothing above the high watermark).",
    caught_by=["reads are prefixes of the committed log"],
    seeds=10,
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
    "Produce is answered at the append, not at the high watermark (Kafka, acks=all).",
    caught_by=["acknowledged appends are present exactly once"],
    seeds=5,
)
def _acknowledged_at_append(plant: Plant) -> None:
    right = ProduceHandler._end_turn

    def wrong(handler: ProduceHandler) -> None:
        right(handler)
        handler.on_high_watermark(handler._view.log_end_offset)

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
    faults=LOST_ANSWERS,
)
def _followers_do_not_note(plant: Plant) -> None:
    right = StorageAdapter.append_fetched

    def note(producers: ProducerState, header: BatchHeader) -> None:
        """Forgets it."""

    def wrong(recorder: StorageAdapter, effect: Any) -> None:
        with patch.object(ProducerState, "note", note):
            right(recorder, effect)

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
