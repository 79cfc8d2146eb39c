"""The topic that the quorum replicates."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from quorumd.wire.metadata_topic import PARTITION, TOPIC, TOPIC_ID


@dataclass(frozen=True, slots=True)
class TopicPartition:
    """A partition that is replicated by the quorum."""

    name: str
    topic_id: UUID
    index: int


METADATA = TopicPartition(TOPIC, TOPIC_ID, PARTITION)
