"""The one topic of the quorum, and its one partition, as messages name them. Source: KIP-595, KIP-516."""

from __future__ import annotations

from typing import Final
from uuid import UUID

TOPIC: Final = "__cluster_metadata"
TOPIC_ID: Final = UUID(int=1)
PARTITION: Final = 0
