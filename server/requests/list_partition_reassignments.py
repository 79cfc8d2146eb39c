"""ListPartitionReassignments: the reassignment that is under way. Source: KIP-455, KIP-642."""

from __future__ import annotations

from quorumd.server.model.partition_view import PartitionView
from quorumd.server.model.topic import METADATA
from quorumd.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponsePartition,
    ListPartitionReassignmentsResponseTopic,
)


def list_partition_reassignments(
    view: PartitionView, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """The one that is under way, if it was asked for (KIP-642)."""
    target = view.target_voters
    is_asked = request.topics is None or any(
        topic.name == METADATA.name and METADATA.index in topic.partition_indexes
        for topic in request.topics
    )
    if target is None or not is_asked:
        return ListPartitionReassignmentsResponse(error_message=None)
    present = view.voters.ids
    partition = ListPartitionReassignmentsResponsePartition(
        partition_index=METADATA.index,
        replicas=present,
        adding_replicas=tuple(voter for voter in target if voter not in present),
        removing_replicas=tuple(voter for voter in present if voter not in target),
    )
    topic = ListPartitionReassignmentsResponseTopic(name=METADATA.name, partitions=(partition,))
    return ListPartitionReassignmentsResponse(error_message=None, topics=(topic,))
