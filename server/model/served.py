"""A partition as those see it who serve clients from it: who leads, and where the log begins and ends."""

from __future__ import annotations

from typing import Protocol

from quorumd.raft.types import Endpoint
from quorumd.server.model.topic import TopicPartition


class Served(Protocol):
    """Reading it changes nothing. Offsets are exclusive ends, except the start."""

    topic: TopicPartition

    @property
    def is_leader(self) -> bool: ...
    @property
    def leader_id(self) -> int | None: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def leader_endpoints(self) -> tuple[Endpoint, ...]: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def committed_offset(self) -> int: ...
