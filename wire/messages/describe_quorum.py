"""DescribeQuorum: who votes, who observes, how far each has fetched (KIP-595, 836, 853).

Tags 10000 and up of the response are this project's own; other readers skip them.
Source: Apache Kafka 4.4, DescribeQuorumRequest.json and DescribeQuorumResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID_,
    Message,
    Struct,
    array,
    field,
)


class DescribeQuorumRequestPartition(Struct):
    partition_index: int = field(INT32)


class DescribeQuorumRequestTopic(Struct):
    topic_name: str = field(STRING)
    partitions: tuple[DescribeQuorumRequestPartition, ...] = array(DescribeQuorumRequestPartition)


class DescribeQuorumRequest(Message, api_key=55, versions="0-2", flexible="0+"):
    topics: tuple[DescribeQuorumRequestTopic, ...] = array(DescribeQuorumRequestTopic)


class DescribeQuorumResponseReplica(Struct):
    replica_id: int = field(INT32)
    replica_directory_id: UUID = field(UUID_, versions="2+")
    log_end_offset: int = field(INT64)
    last_fetch_timestamp: int = field(INT64, versions="1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = field(INT64, versions="1+", default=-1, ignorable=True)


class DescribeQuorumResponseCommittedVoter(Struct):
    replica_id: int = field(INT32)
    replica_directory_id: UUID = field(UUID_)


class DescribeQuorumResponsePendingChange(Struct):
    """A voter change that was requested and is not committed yet.

    `kind` is "add", "remove", "reassign" or "transfer"; the replica is the one that it is about, -1 if it is
    about several, or any. It was asked for `waiting_ms` ago, -1 for a reassignment; `waits_for` says to
    people what has to come first.
    """

    kind: str = field(STRING)
    replica_id: int = field(INT32)
    replica_directory_id: UUID = field(UUID_)
    waiting_ms: int = field(INT64)
    waits_for: str = field(STRING)


class DescribeQuorumResponseSnapshotCopy(Struct):
    """A replica has `position` bytes of one of the leader's snapshots."""

    replica_id: int = field(INT32)
    replica_directory_id: UUID = field(UUID_)
    end_offset: int = field(INT64)
    epoch: int = field(INT32)
    position: int = field(INT64)
    size_bytes: int = field(INT64)


class DescribeQuorumResponseSnapshotBuild(Struct):
    """The leader builds a snapshot, and so much of the work is done; none if `end_offset` is -1."""

    end_offset: int = field(INT64, default=-1)
    permille: int = field(INT16)


class DescribeQuorumResponsePartition(Struct):
    """`committed_voters` is None if the current voters are committed.

    `target_voters` are the ids that a reassignment is on its way to, None if there is none;
    `pending_changes` and `snapshot_copies` are None if the node does not say.
    """

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, versions="2+", nullable="2+", ignorable=True)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    high_watermark: int = field(INT64)
    current_voters: tuple[DescribeQuorumResponseReplica, ...] = array(DescribeQuorumResponseReplica)
    observers: tuple[DescribeQuorumResponseReplica, ...] = array(DescribeQuorumResponseReplica)
    committed_voters: tuple[DescribeQuorumResponseCommittedVoter, ...] | None = array(
        DescribeQuorumResponseCommittedVoter, nullable="0+", default=None, tag=10000
    )
    target_voters: tuple[int, ...] | None = array(INT32, nullable="0+", default=None, tag=10001)
    pending_changes: tuple[DescribeQuorumResponsePendingChange, ...] | None = array(
        DescribeQuorumResponsePendingChange, nullable="0+", default=None, tag=10002
    )
    snapshot_copies: tuple[DescribeQuorumResponseSnapshotCopy, ...] | None = array(
        DescribeQuorumResponseSnapshotCopy, nullable="0+", default=None, tag=10010
    )
    snapshot_build: DescribeQuorumResponseSnapshotBuild = field(
        DescribeQuorumResponseSnapshotBuild, tag=10011
    )


class DescribeQuorumResponseTopic(Struct):
    topic_name: str = field(STRING)
    partitions: tuple[DescribeQuorumResponsePartition, ...] = array(DescribeQuorumResponsePartition)


class DescribeQuorumResponseListener(Struct):
    name: str = field(STRING, versions="2+")
    host: str = field(STRING, versions="2+")
    port: int = field(UINT16, versions="2+")


class DescribeQuorumResponseNode(Struct):
    """Two storage ids may stand under one node id: a directory id that is not zero says which."""

    node_id: int = field(INT32, versions="2+")
    listeners: tuple[DescribeQuorumResponseListener, ...] = array(
        DescribeQuorumResponseListener, versions="2+"
    )
    directory_id: UUID = field(UUID_, versions="2+", tag=10000)


class DescribeQuorumResponse(Message, api_key=55, versions="0-2", flexible="0+"):
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, versions="2+", nullable="2+", ignorable=True)
    topics: tuple[DescribeQuorumResponseTopic, ...] = array(DescribeQuorumResponseTopic)
    nodes: tuple[DescribeQuorumResponseNode, ...] = array(DescribeQuorumResponseNode, versions="2+")
