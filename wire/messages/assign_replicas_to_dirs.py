"""AssignReplicasToDirs: a broker tells the controller in which directories replicas are (KIP-858).

Source: Apache Kafka 4.3, AssignReplicasToDirsRequest.json and AssignReplicasToDirsResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import INT16, INT32, INT64, UUID_, Message, Struct, array, field


class AssignReplicasToDirsRequestDirectoryTopicPartition(Struct):
    partition_index: int = field(INT32)


class AssignReplicasToDirsRequestDirectoryTopic(Struct):
    topic_id: UUID = field(UUID_)
    partitions: tuple[AssignReplicasToDirsRequestDirectoryTopicPartition, ...] = array(
        AssignReplicasToDirsRequestDirectoryTopicPartition
    )


class AssignReplicasToDirsRequestDirectory(Struct):
    id: UUID = field(UUID_)
    topics: tuple[AssignReplicasToDirsRequestDirectoryTopic, ...] = array(
        AssignReplicasToDirsRequestDirectoryTopic
    )


class AssignReplicasToDirsRequest(Message, api_key=73, versions="0", flexible="0+"):
    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)
    directories: tuple[AssignReplicasToDirsRequestDirectory, ...] = array(
        AssignReplicasToDirsRequestDirectory
    )


class AssignReplicasToDirsResponseDirectoryTopicPartition(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class AssignReplicasToDirsResponseDirectoryTopic(Struct):
    topic_id: UUID = field(UUID_)
    partitions: tuple[AssignReplicasToDirsResponseDirectoryTopicPartition, ...] = array(
        AssignReplicasToDirsResponseDirectoryTopicPartition
    )


class AssignReplicasToDirsResponseDirectory(Struct):
    id: UUID = field(UUID_)
    topics: tuple[AssignReplicasToDirsResponseDirectoryTopic, ...] = array(
        AssignReplicasToDirsResponseDirectoryTopic
    )


class AssignReplicasToDirsResponse(Message, api_key=73, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    directories: tuple[AssignReplicasToDirsResponseDirectory, ...] = array(
        AssignReplicasToDirsResponseDirectory
    )
