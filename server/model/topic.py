"""The topic that the quorum replicates."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class TopicPartition:
    """A partition that is replicated by the quorum."""

    name: str
    topic_id: UUID
    index: int


METADATA = TopicPartition("__cluster_metadata", UUID(int=1), 0)
