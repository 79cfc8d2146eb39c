"""UpdateRaftVoter: a voter tells the leader its listeners and its kraft.version range (KIP-853).

Source: Apache Kafka 4.4, UpdateRaftVoterRequest.json and UpdateRaftVoterResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import INT16, INT32, STRING, UINT16, UUID_, Message, Struct, array, field


class UpdateRaftVoterRequestListener(Struct):
    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)


class UpdateRaftVoterRequestKRaftVersionFeature(Struct):
    min_supported_version: int = field(INT16)
    max_supported_version: int = field(INT16)


class UpdateRaftVoterRequest(Message, api_key=82, versions="0", flexible="0+"):
    """`listeners` are all of the voter's from now on."""

    cluster_id: str | None = field(STRING, nullable="0+", default=None)
    current_leader_epoch: int = field(INT32)
    voter_id: int = field(INT32)
    voter_directory_id: UUID = field(UUID_)
    listeners: tuple[UpdateRaftVoterRequestListener, ...] = array(UpdateRaftVoterRequestListener)
    kraft_version_feature: UpdateRaftVoterRequestKRaftVersionFeature = field(
        UpdateRaftVoterRequestKRaftVersionFeature
    )


class UpdateRaftVoterResponseCurrentLeader(Struct):
    leader_id: int = field(INT32, default=-1)
    leader_epoch: int = field(INT32, default=-1)
    host: str = field(STRING)
    port: int = field(INT32)


class UpdateRaftVoterResponse(Message, api_key=82, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    current_leader: UpdateRaftVoterResponseCurrentLeader = field(
        UpdateRaftVoterResponseCurrentLeader, tag=0
    )
