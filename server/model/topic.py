"""The topic that the quorum replicates."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from quorumd.wire.metadata_topic import PARTITION, TOPIC, TOPIC_ID


@dataclass(frozen=True, slots=True)
class TopicPartition:
    """A partition that is replicated by the quorum."""

    name: str
    topic_id: UUID
    index: int
    name_bytes: bytes = field(init=False, repr=False, compare=False)
    """The name as messages carry it."""
    id_bytes: bytes = field(init=False, repr=False, compare=False)
    """The id as messages carry it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name_bytes", self.name.encode())
        object.__setattr__(self, "id_bytes", self.topic_id.bytes)


METADATA = TopicPartition(TOPIC, TOPIC_ID, PARTITION)
