"""Messages of membership: bytes that Apache Kafka 4.3.1's own classes read and write the same way,
tags of our own included; and what only some versions can say."""

from __future__ import annotations

import warnings
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given

from quorumd.wire.codec import decode, encode
from quorumd.wire.errors import UnsupportedVersion
from quorumd.wire.messages.add_raft_voter import (
    AddRaftVoterRequest,
    AddRaftVoterRequestListener,
    AddRaftVoterResponse,
)
from quorumd.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    AlterPartitionReassignmentsResponse,
    AlterPartitionReassignmentsResponsePartition,
    AlterPartitionReassignmentsResponseTopic,
)
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumResponse,
    DescribeQuorumResponseCommittedVoter,
    DescribeQuorumResponseNode,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponsePendingChange,
    DescribeQuorumResponseTopic,
)
from quorumd.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from quorumd.wire.messages.transfer_leader import TransferLeaderRequest, TransferLeaderResponse
from quorumd.wire.messages.update_raft_voter import (
    UpdateRaftVoterRequest,
    UpdateRaftVoterRequestKRaftVersionFeature,
    UpdateRaftVoterRequestListener,
    UpdateRaftVoterResponse,
    UpdateRaftVoterResponseCurrentLeader,
)
from tests.wire.wire_values import examples, messages

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.admin import DescribeQuorumResponse as KafkaPythonResponse

ONES = UUID("11111111-1111-4111-8111-111111111111")
ONES_HEX = ONES.hex
ADD = AddRaftVoterRequest(
    cluster_id="abc",
    timeout_ms=2000,
    voter_id=4,
    voter_directory_id=ONES,
    listeners=(AddRaftVoterRequestListener(name="CONTROLLER", host="h4", port=9093),),
)
ADD_HEX = f"04616263 000007d0 00000004 {ONES_HEX} 02 0b434f4e54524f4c4c4552 036834 2385 00"
REMOVE = RemoveRaftVoterRequest(cluster_id="abc", voter_id=4, voter_directory_id=ONES)
REMOVE_HEX = f"04616263 00000004 {ONES_HEX}"
LEADER_TAGS = "02 904e 04 00000002 914e 04 00000007"
ASSIGN = AlterPartitionReassignmentsRequest(
    topics=(
        AlterPartitionReassignmentsRequestTopic(
            name="t",
            partitions=(
                AlterPartitionReassignmentsRequestPartition(replicas=(1, 4)),
                AlterPartitionReassignmentsRequestPartition(partition_index=1),
            ),
        ),
    )
)
ASSIGN_HEX = "02 0274 03 00000000 03 00000001 00000004 00 00000001 00 00 00 00"
ASSIGNED = AlterPartitionReassignmentsResponse(
    responses=(
        AlterPartitionReassignmentsResponseTopic(
            name="t",
            partitions=(
                AlterPartitionReassignmentsResponsePartition(),
                AlterPartitionReassignmentsResponsePartition(
                    partition_index=1, error_code=85, error_message="no"
                ),
            ),
        ),
    )
)
ASSIGNED_HEX = "0000 00 02 0274 03 00000000 0000 00 00 00000001 0055 036e6f 00 00 00"
DESCRIBED = DescribeQuorumResponse(
    topics=(
        DescribeQuorumResponseTopic(
            topic_name="t",
            partitions=(
                DescribeQuorumResponsePartition(
                    leader_id=1,
                    leader_epoch=7,
                    high_watermark=9,
                    committed_voters=(
                        DescribeQuorumResponseCommittedVoter(
                            replica_id=1, replica_directory_id=ONES
                        ),
                    ),
                    target_voters=(1, 4),
                    pending_changes=(
                        DescribeQuorumResponsePendingChange(
                            kind="add",
                            replica_id=4,
                            replica_directory_id=ONES,
                            waiting_ms=300,
                            waits_for="log",
                        ),
                    ),
                ),
            ),
        ),
    ),
    nodes=(
        DescribeQuorumResponseNode(node_id=4, directory_id=ONES),
        DescribeQuorumResponseNode(node_id=5),
    ),
)
DESCRIBED_HEX = f"""0000 01 02 0274 02 00000000 0000 01 00000001 00000007 0000000000000009 01 01
    03 904e 16 02 00000001 {ONES_HEX} 00
       914e 09 03 00000001 00000004
       924e 26 02 04616464 00000004 {ONES_HEX} 000000000000012c 046c6f67 00
    00 03 00000004 01 01 904e 10 {ONES_HEX} 00000005 01 00 00"""

BODIES = {
    "add 0": (ADD, 0, ADD_HEX + "00"),
    "add 1": (replace(ADD, ack_when_committed=False), 1, ADD_HEX + "00 00"),
    "added": (AddRaftVoterResponse(), 1, "00000000 0000 00 00"),
    "not added": (
        AddRaftVoterResponse(error_code=6, error_message="2", leader_id=2, leader_epoch=7),
        1,
        "00000000 0006 0232" + LEADER_TAGS,
    ),
    "remove": (REMOVE, 0, REMOVE_HEX + "00"),
    "remove in time": (
        replace(REMOVE, timeout_ms=3000),
        0,
        REMOVE_HEX + "01 904e 04 00000bb8",
    ),
    "removed": (RemoveRaftVoterResponse(), 0, "00000000 0000 00 00"),
    "not removed": (
        RemoveRaftVoterResponse(error_code=6, error_message="2", leader_id=2, leader_epoch=7),
        0,
        "00000000 0006 0232" + LEADER_TAGS,
    ),
    "update": (
        UpdateRaftVoterRequest(
            current_leader_epoch=7,
            voter_id=4,
            voter_directory_id=ONES,
            listeners=(UpdateRaftVoterRequestListener(name="C", host="h4", port=65535),),
            kraft_version_feature=UpdateRaftVoterRequestKRaftVersionFeature(
                max_supported_version=1
            ),
        ),
        0,
        f"00 00000007 00000004 {ONES_HEX} 02 0243 036834 ffff 00 0000 0001 00 00",
    ),
    "updated": (UpdateRaftVoterResponse(), 0, "00000000 0000 00"),
    "not updated": (
        UpdateRaftVoterResponse(
            error_code=6,
            current_leader=UpdateRaftVoterResponseCurrentLeader(
                leader_id=2, leader_epoch=7, host="h2", port=9093
            ),
        ),
        0,
        "00000000 0006 01 00 10 00000002 00000007 036832 00002385 00",
    ),
    "assign 0": (ASSIGN, 0, "0000ea60" + ASSIGN_HEX),
    "assign 1": (
        replace(ASSIGN, allow_replication_factor_change=False),
        1,
        "0000ea60 00" + ASSIGN_HEX,
    ),
    "assigned 0": (ASSIGNED, 0, "00000000" + ASSIGNED_HEX),
    "assigned 1": (ASSIGNED, 1, "00000000 01" + ASSIGNED_HEX),
    "described": (DESCRIBED, 2, DESCRIBED_HEX),
}


@pytest.mark.parametrize(("message", "version", "text"), BODIES.values(), ids=BODIES)
def test_bodies_are_those_of_kafka_with_tags_that_it_skips(message, version, text):
    golden = bytes.fromhex(text)
    assert decode(type(message), version, golden) == message
    assert encode(message, version).hex() == golden.hex()


@pytest.mark.long
@examples(30)
@given(message=messages(DescribeQuorumResponse, 2))
def test_kafka_python_reads_what_kafka_has_and_skips_tags_of_our_own(message):
    read = KafkaPythonResponse.decode(encode(message, 2), version=2)

    assert [node.node_id for node in read.nodes] == [node.node_id for node in message.nodes]
    for topic, theirs in zip(message.topics, read.topics, strict=True):
        assert [
            (at.partition_index, at.leader_epoch, at.high_watermark, len(at.observers))
            for at in topic.partitions
        ] == [
            (at.partition_index, at.leader_epoch, at.high_watermark, len(at.observers))
            for at in theirs.partitions
        ]


@pytest.mark.parametrize("version", range(3))
def test_an_empty_list_in_a_tag_is_not_null_in_any_version(version):
    def described(partition):
        topic = DescribeQuorumResponseTopic(partitions=(partition,))
        return DescribeQuorumResponse(topics=(topic,))

    empty = DescribeQuorumResponsePartition(
        committed_voters=(), target_voters=(), pending_changes=()
    )
    encoded = encode(described(empty), version)
    assert decode(DescribeQuorumResponse, version, encoded) == described(empty)
    unset = described(DescribeQuorumResponsePartition())
    assert decode(DescribeQuorumResponse, version, encode(unset, version)) == unset
    nulls = encoded.replace(
        bytes.fromhex("904e0101 914e0101 924e0101"), bytes.fromhex("904e0100 914e0100 924e0100")
    )
    assert nulls != encoded
    assert decode(DescribeQuorumResponse, version, nulls) == unset


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (AddRaftVoterRequest(ack_when_committed=False), "ack_when_committed"),
        (
            AlterPartitionReassignmentsRequest(allow_replication_factor_change=False),
            "allow_replication_factor_change",
        ),
    ],
)
def test_what_version_0_takes_for_granted_is_not_denied_in_it(message, field):
    with pytest.raises(UnsupportedVersion, match=field):
        encode(message, 0)
    assert decode(type(message), 1, encode(message, 1)) == message
    assert getattr(decode(type(message), 0, encode(type(message)(), 0)), field) is True


def test_version_0_of_a_reassignment_is_answered_without_the_new_flag():
    answer = AlterPartitionReassignmentsResponse(allow_replication_factor_change=False)
    assert encode(answer, 0) == encode(AlterPartitionReassignmentsResponse(), 0)
    assert encode(answer, 1) != encode(AlterPartitionReassignmentsResponse(), 1)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (TransferLeaderRequest(), f"00 ffffffff {UUID(int=0).hex} 00000000 00"),
        (
            TransferLeaderRequest(cluster_id="abc", to_id=2, to_directory_id=ONES, timeout_ms=3000),
            f"04616263 00000002 {ONES_HEX} 00000bb8 00",
        ),
        (TransferLeaderResponse(), "00000000 0000 00 ffffffff ffffffff 00"),
        (
            TransferLeaderResponse(
                throttle_time_ms=1, error_code=6, error_message="2", leader_id=2, leader_epoch=7
            ),
            "00000001 0006 0232 00000002 00000007 00",
        ),
    ],
)
def test_a_transfer_of_the_leadership_has_these_bytes(message, text):
    golden = bytes.fromhex(text)
    assert encode(message, 0).hex() == golden.hex()
    assert decode(type(message), 0, golden) == message
