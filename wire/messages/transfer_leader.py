"""TransferLeader: an operator wants another voter to lead.

A request of this project's own: Kafka has none.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import INT16, INT32, STRING, UUID_, Message, field


class TransferLeaderRequest(Message, api_key=20001, versions="0", flexible="0+"):
    """With a `to_id` of -1 the leader chooses; a zero directory id is whichever that voter has."""

    cluster_id: str | None = field(STRING, nullable="0+", default=None)
    to_id: int = field(INT32, default=-1)
    to_directory_id: UUID = field(UUID_)
    timeout_ms: int = field(INT32)


class TransferLeaderResponse(Message, api_key=20001, versions="0", flexible="0+"):
    """Leader id and epoch as far as the node that responds knows them, else -1."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    leader_id: int = field(INT32, default=-1)
    leader_epoch: int = field(INT32, default=-1)
