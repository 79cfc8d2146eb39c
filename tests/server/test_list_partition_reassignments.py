"""ListPartitionReassignments: the one that is under way, where asked for."""

from __future__ import annotations

from quorumd.server.requests.list_partition_reassignments import list_partition_reassignments
from quorumd.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequestTopic,
)
from tests.support.cluster import FixedView, decoded_again


def test_no_reassignment_is_under_way() -> None:
    asked = ListPartitionReassignmentsRequest()
    answer = decoded_again(list_partition_reassignments(FixedView(), asked), 0)
    assert (answer.error_code, answer.error_message, answer.topics) == (0, None, ())


def test_a_reassignment_that_is_under_way_is_listed_if_it_is_asked_for() -> None:
    view = FixedView(target_voters=(2, 4))
    every = ListPartitionReassignmentsRequest()
    (topic,) = decoded_again(list_partition_reassignments(view, every), 0).topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index) == ("__cluster_metadata", 0)
    assert partition.replicas == (1, 2, 3)
    assert (partition.adding_replicas, partition.removing_replicas) == ((4,), (1, 3))
    other = ListPartitionReassignmentsRequestTopic(name="other", partition_indexes=(0,))
    asked = ListPartitionReassignmentsRequest(topics=(other,))
    assert decoded_again(list_partition_reassignments(view, asked), 0).topics == ()
