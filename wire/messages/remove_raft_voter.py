"""RemoveRaftVoter: an operator, or a replica of itself, wants a voter gone (KIP-853).

Tags 10000 and up are this project's own: how long the asker waits, whether it insists, and in the
response of a node that does not lead, the leader. Kafka's readers skip them.
Source: Apache Kafka 4.4, RemoveRaftVoterRequest.json and RemoveRaftVoterResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import BOOL, INT16, INT32, STRING, UUID_, Message, field


class RemoveRaftVoterRequest(Message, api_key=81, versions="0", flexible="0+"):
    """A `timeout_ms` of -1 stands for the server's own request timeout.

    `force`: also if too few of the voters that remain are there to commit anything.
    """

    cluster_id: str | None = field(STRING, nullable="0+", default=None)
    voter_id: int = field(INT32)
    voter_directory_id: UUID = field(UUID_)
    timeout_ms: int = field(INT32, default=-1, tag=10000)
    force: bool = field(BOOL, tag=10001)


class RemoveRaftVoterResponse(Message, api_key=81, versions="0", flexible="0+"):
    """Leader id and epoch are -1 if unknown."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None, ignorable=True)
    leader_id: int = field(INT32, default=-1, tag=10000)
    leader_epoch: int = field(INT32, default=-1, tag=10001)
