"""AddRaftVoter: an operator, or a replica of itself, asks for a new voter (KIP-853, 1186).

Tags 10000 and up of the response are this project's own: a node that does not lead names the
leader in them. Kafka's readers skip them.
Source: Apache Kafka 4.4, AddRaftVoterRequest.json and AddRaftVoterResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import (
    BOOL,
    INT16,
    INT32,
    STRING,
    UINT16,
    UUID_,
    Message,
    Struct,
    array,
    field,
)


class AddRaftVoterRequestListener(Struct):
    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)


class AddRaftVoterRequest(Message, api_key=80, versions="0-1", flexible="0+"):
    """`ack_when_committed` False wants the response as soon as the leader has the record."""

    cluster_id: str | None = field(STRING, nullable="0+", default=None)
    timeout_ms: int = field(INT32)
    voter_id: int = field(INT32)
    voter_directory_id: UUID = field(UUID_)
    listeners: tuple[AddRaftVoterRequestListener, ...] = array(AddRaftVoterRequestListener)
    ack_when_committed: bool = field(BOOL, versions="1+", default=True)


class AddRaftVoterResponse(Message, api_key=80, versions="0-1", flexible="0+"):
    """Leader id and epoch are -1 if unknown."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None, ignorable=True)
    leader_id: int = field(INT32, default=-1, tag=10000)
    leader_epoch: int = field(INT32, default=-1, tag=10001)
