"""Raft requests that would end a real Kafka node, or that no honest replica sends, from a raw socket.

No node dies, leader and epoch stay, commits go on.
"""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from quorumd.wire.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochRequestPartition,
    BeginQuorumEpochRequestTopic,
    BeginQuorumEpochResponse,
)
from quorumd.wire.messages.end_quorum_epoch import (
    EndQuorumEpochRequest,
    EndQuorumEpochRequestPartition,
    EndQuorumEpochRequestPreferredCandidate,
    EndQuorumEpochRequestTopic,
    EndQuorumEpochResponse,
)
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchResponse,
)
from quorumd.wire.messages.vote import (
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
    VoteResponse,
)
from quorumd.wire.schema import Message
from tests.daemon.forged_requests import (
    BEGIN,
    END,
    FETCH,
    UNKNOWN_ID,
    UNKNOWN_UUID,
    VOTE,
    Seen,
    begin,
    end,
    replica_fetch,
    see,
    vote,
)
from tests.support.live_cluster import TOPIC, Cluster
from tests.support.raw_client import Hungup, RawClient

pytestmark = pytest.mark.usefixtures("harmless")

LAST_EPOCH = 2**31 - 1
SEED = 596


@pytest.fixture
def seen(quorum: Cluster) -> Seen:
    return see(quorum)


# -- votes


@pytest.mark.parametrize("pre_vote", [False, True])
@pytest.mark.parametrize("epoch", [LAST_EPOCH, LAST_EPOCH - 1, 2**31 - 2**20 + 1, -1, -(2**31)])
def test_a_vote_in_an_impossible_epoch_is_refused_and_the_epoch_stays(
    quorum: Cluster, seen: Seen, epoch: int, pre_vote: bool
) -> None:
    for node in quorum.ids:
        for version in (0, 1, 2):
            if pre_vote and version < 2:
                continue
            with RawClient(quorum.port(node)) as client:
                answer = client.ask(
                    VOTE,
                    version,
                    vote(seen.cluster_id, epoch=epoch, pre_vote=pre_vote),
                    VoteResponse,
                )
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            assert answer.topics == ()


def test_a_pre_vote_of_a_stranger_with_the_longest_log_is_not_granted_beside_a_living_leader(
    quorum: Cluster, seen: Seen
) -> None:
    for node in quorum.ids:
        message = vote(seen.cluster_id, epoch=seen.epoch, pre_vote=True, last_epoch=seen.epoch)
        with RawClient(quorum.port(node)) as client:
            answer = client.ask(VOTE, 2, message, VoteResponse).topics[0].partitions[0]
        assert (answer.error_code, answer.vote_granted) == (0, False)
        assert (answer.leader_id, answer.leader_epoch) == (seen.leader, seen.epoch)


def test_a_vote_in_the_living_epoch_is_not_granted(quorum: Cluster, seen: Seen) -> None:
    for node in quorum.ids:
        with RawClient(quorum.port(node)) as client:
            answer = client.ask(VOTE, 2, vote(seen.cluster_id, epoch=seen.epoch), VoteResponse)
        assert not answer.topics[0].partitions[0].vote_granted


@pytest.mark.parametrize(
    "wrong", [{"topics": 0}, {"topics": 2}, {"topic": "elsewhere"}, {"partition": 1}]
)
def test_a_vote_about_anything_but_the_one_partition_is_an_invalid_request(
    quorum: Cluster, seen: Seen, wrong: dict[str, Any]
) -> None:
    for node in quorum.ids:
        message = vote(seen.cluster_id, epoch=seen.epoch + 1, **wrong)
        with RawClient(quorum.port(node)) as client:
            answer = client.ask(VOTE, 2, message, VoteResponse)
        assert (answer.error_code, answer.topics) == (ErrorCode.INVALID_REQUEST, ())


@pytest.mark.parametrize(
    ("key", "version", "response"),
    [
        (VOTE, 2, VoteResponse),
        (BEGIN, 1, BeginQuorumEpochResponse),
        (END, 1, EndQuorumEpochResponse),
        (FETCH, 18, FetchResponse),
    ],
)
def test_a_kafka_node_takes_no_part_in_a_quorumd_log(
    quorum: Cluster, seen: Seen, key: int, version: int, response: type[Message]
) -> None:
    """A top-level error: one in the partition ends a Kafka process."""
    requests: dict[int, Message] = {
        VOTE: vote(seen.cluster_id, epoch=seen.epoch + 1, last_epoch=seen.epoch),
        BEGIN: begin(seen.cluster_id, epoch=seen.epoch + 1, leader=UNKNOWN_ID, port=9),
        END: end(seen.cluster_id, epoch=seen.epoch, leader=seen.leader),
        FETCH: replica_fetch(epoch=seen.epoch),
    }
    hello = ApiVersionsRequest(
        client_software_name="apache-kafka-java", client_software_version="4.3.1"
    )
    for node in quorum.ids:
        with RawClient(quorum.port(node)) as client:
            client.ask(18, 4, hello, ApiVersionsResponse)
            answer: Any = client.ask(key, version, requests[key], response)
        said = answer.responses if key == FETCH else answer.topics
        assert (answer.error_code, said) == (ErrorCode.INVALID_REQUEST, ())
        assert quorum.status(node)["epoch"] == seen.epoch


def test_a_vote_under_a_voters_own_id_and_disk_is_refused_by_that_voter(
    quorum: Cluster, seen: Seen
) -> None:
    message = vote(seen.cluster_id, epoch=seen.epoch + 1, replica=seen.leader)
    partition = message.topics[0].partitions[0]
    own = VoteRequestPartition(
        replica_epoch=partition.replica_epoch,
        replica_id=seen.leader,
        replica_directory_id=seen.uuids[seen.leader],
        last_offset_epoch=seen.epoch,
        last_offset=10**9,
    )
    topic = VoteRequestTopic(topic_name=TOPIC, partitions=(own,))
    message = VoteRequest(cluster_id=seen.cluster_id, topics=(topic,))
    with RawClient(quorum.port(seen.leader)) as client:
        answer = client.ask(VOTE, 2, message, VoteResponse)
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


# -- announcements and resignations


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("port", [None, 9])
def test_another_leader_in_the_living_epoch_is_refused(
    quorum: Cluster, seen: Seen, version: int, port: int | None
) -> None:
    others = [node for node in quorum.ids if node != seen.leader]
    for node in quorum.ids:
        for leader in (UNKNOWN_ID, *others):
            told = begin(seen.cluster_id, epoch=seen.epoch, leader=leader, port=port)
            with RawClient(quorum.port(node)) as client:
                answer = client.ask(BEGIN, version, told, BeginQuorumEpochResponse)
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR, (node, leader)
            over = end(seen.cluster_id, epoch=seen.epoch, leader=leader, port=port)
            with RawClient(quorum.port(node)) as client:
                ended = client.ask(END, version, over, EndQuorumEpochResponse)
            assert ended.error_code == ErrorCode.UNKNOWN_SERVER_ERROR, (node, leader)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("epoch", [LAST_EPOCH, LAST_EPOCH - 1, -1])
def test_a_leader_of_an_impossible_epoch_is_refused(
    quorum: Cluster, seen: Seen, version: int, epoch: int
) -> None:
    for node in quorum.ids:
        for leader in (UNKNOWN_ID, node):
            told = begin(seen.cluster_id, epoch=epoch, leader=leader, port=9)
            with RawClient(quorum.port(node)) as client:
                begun = client.ask(BEGIN, version, told, BeginQuorumEpochResponse)
            assert begun.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            over = end(seen.cluster_id, epoch=epoch, leader=leader, port=9)
            with RawClient(quorum.port(node)) as client:
                ended = client.ask(END, version, over, EndQuorumEpochResponse)
            assert ended.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("version", [0, 1])
def test_a_higher_epoch_with_a_leader_that_nobody_can_reach_changes_nothing(
    quorum: Cluster, seen: Seen, version: int
) -> None:
    """Outside the voter set and without endpoints: the request that ends a Kafka node."""
    for node in quorum.ids:
        for epoch in (seen.epoch + 1, 2**30):
            told = begin(seen.cluster_id, epoch=epoch, leader=UNKNOWN_ID)
            with RawClient(quorum.port(node)) as client:
                begun = client.ask(BEGIN, version, told, BeginQuorumEpochResponse)
            assert begun.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            over = end(seen.cluster_id, epoch=epoch, leader=UNKNOWN_ID)
            with RawClient(quorum.port(node)) as client:
                ended = client.ask(END, version, over, EndQuorumEpochResponse)
            assert ended.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_an_earlier_epoch_is_fenced(quorum: Cluster, seen: Seen) -> None:
    for node in quorum.ids:
        with RawClient(quorum.port(node)) as client:
            told = begin(seen.cluster_id, epoch=seen.epoch - 1, leader=UNKNOWN_ID)
            begun = client.ask(BEGIN, 1, told, BeginQuorumEpochResponse).topics[0].partitions[0]
        assert begun.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (begun.leader_id, begun.leader_epoch) == (seen.leader, seen.epoch)


# -- fetches


@pytest.mark.parametrize("wrong", [{"topics": 0}, {"topics": 2}, {"partitions": 0}])
def test_a_replica_fetch_of_no_or_several_partitions_is_refused(
    quorum: Cluster, seen: Seen, wrong: dict[str, Any]
) -> None:
    for node in quorum.ids:
        for version in (15, 16, 17, 18):
            message = replica_fetch(epoch=seen.epoch, **wrong)
            with RawClient(quorum.port(node)) as client:
                answer = client.ask(FETCH, version, message, FetchResponse)
            assert not any(p.records for t in answer.responses for p in t.partitions)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"topic_id": UUID(int=9)}, ErrorCode.INVALID_REQUEST),
        ({"partition": 1}, ErrorCode.INVALID_REQUEST),
        ({"offset": -5}, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({"offset": -(2**63)}, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({"last_epoch": 2**31 - 1}, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({"wait_ms": -1}, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_replica_fetch_with_impossible_values_is_refused(
    quorum: Cluster, seen: Seen, wrong: dict[str, Any], code: ErrorCode
) -> None:
    message = replica_fetch(epoch=seen.epoch, **wrong)
    with RawClient(quorum.port(seen.leader)) as client:
        answer = client.ask(FETCH, 17, message, FetchResponse)
    assert (ErrorCode(answer.error_code), answer.responses) == (code, ())


def test_a_fetch_from_beyond_the_log_end_commits_nothing_and_diverges(
    quorum: Cluster, seen: Seen
) -> None:
    """Even under a voter's id: nobody can acknowledge what does not exist."""
    voter = next(node for node in quorum.ids if node != seen.leader)
    message = replica_fetch(
        epoch=seen.epoch,
        offset=2**62,
        last_epoch=seen.epoch,
        replica=voter,
        uuid=UUID(int=0),
    )
    with RawClient(quorum.port(seen.leader)) as client:
        answer = client.ask(FETCH, 17, message, FetchResponse).responses[0].partitions[0]
    assert answer.error_code == 0
    assert answer.diverging_epoch.epoch >= 0
    assert not answer.records


def test_a_stranger_under_a_voters_id_acknowledges_nothing(quorum: Cluster, seen: Seen) -> None:
    """Another storage id, or none: its fetches move no voter's progress."""
    voter = next(node for node in quorum.ids if node != seen.leader)
    for uuid in (UNKNOWN_UUID, UUID(int=0)):
        with RawClient(quorum.port(seen.leader)) as client:
            message = replica_fetch(epoch=seen.epoch, replica=voter, uuid=uuid)
            client.ask(FETCH, 17, message, FetchResponse)
    rows = quorum.status(seen.leader)["replicas"]
    honest = next(row for row in rows if row["id"] == voter and row["is_voter"])
    assert honest["log_end_offset"] > 0


@pytest.mark.parametrize("epoch", [0, LAST_EPOCH])
def test_a_fetch_in_another_epoch_names_leader_and_epoch(
    quorum: Cluster, seen: Seen, epoch: int
) -> None:
    with RawClient(quorum.port(seen.leader)) as client:
        answer = client.ask(FETCH, 17, replica_fetch(epoch=epoch), FetchResponse)
    partition = answer.responses[0].partitions[0]
    expected = ErrorCode.UNKNOWN_LEADER_EPOCH if epoch else ErrorCode.FENCED_LEADER_EPOCH
    assert partition.error_code == expected
    assert partition.current_leader.leader_id == seen.leader
    assert partition.current_leader.leader_epoch == seen.epoch


# -- another cluster


def test_every_raft_request_of_another_cluster_is_answered_104(quorum: Cluster, seen: Seen) -> None:
    other = "another-cluster"
    for node in quorum.ids:
        with RawClient(quorum.port(node)) as client:
            voted = client.ask(VOTE, 2, vote(other, epoch=seen.epoch + 5), VoteResponse)
            told = begin(other, epoch=seen.epoch + 5, leader=node)
            begun = client.ask(BEGIN, 1, told, BeginQuorumEpochResponse)
            over = end(other, epoch=seen.epoch, leader=seen.leader)
            ended = client.ask(END, 1, over, EndQuorumEpochResponse)
            fetch = replica_fetch(epoch=seen.epoch, cluster_id=other)
            fetched = client.ask(FETCH, 17, fetch, FetchResponse)
        for answer in (voted.error_code, begun.error_code, ended.error_code, fetched.error_code):
            assert answer == ErrorCode.INCONSISTENT_CLUSTER_ID


# -- anything


def test_raft_requests_of_random_values_harm_nobody(quorum: Cluster, seen: Seen) -> None:
    """Every field from a set of odd values; the epochs are those that no election could reach."""
    rng = random.Random(SEED)
    small = (-(2**31), -9, -1, 0, 1, 2, 3, UNKNOWN_ID, 2**31 - 1)
    epochs = (-(2**31), -1, 0, seen.epoch, 2**31 - 2**20 + 5, 2**31 - 2, 2**31 - 1)
    large = (-(2**63), -1, 0, 1, 5, 10**6, 2**63 - 1)
    uuids = (UUID(int=0), UUID(int=5), *seen.uuids.values())
    names = (None, seen.cluster_id, "", "x" * 300)

    def any_vote() -> VoteRequest:
        asked = VoteRequestPartition(
            partition_index=rng.choice((0, 0, 0, -1, 7)),
            replica_epoch=rng.choice(epochs),
            replica_id=rng.choice(small),
            replica_directory_id=rng.choice(uuids),
            voter_directory_id=rng.choice(uuids),
            last_offset_epoch=rng.choice(epochs),
            last_offset=rng.choice(large),
            pre_vote=rng.random() < 0.5,
        )
        topic = VoteRequestTopic(topic_name=TOPIC, partitions=(asked,))
        return VoteRequest(
            cluster_id=rng.choice(names), voter_id=rng.choice(small), topics=(topic,)
        )

    def any_begin() -> BeginQuorumEpochRequest:
        begun = BeginQuorumEpochRequestPartition(
            voter_directory_id=rng.choice(uuids),
            leader_id=rng.choice(small),
            leader_epoch=rng.choice(epochs),
        )
        topic = BeginQuorumEpochRequestTopic(topic_name=TOPIC, partitions=(begun,))
        return BeginQuorumEpochRequest(
            cluster_id=rng.choice(names), voter_id=rng.choice(small), topics=(topic,)
        )

    def any_end() -> EndQuorumEpochRequest:
        leader, epoch = rng.choice(small), rng.choice(epochs)
        if (leader, epoch) == (seen.leader, seen.epoch):
            epoch -= 1  # that one would be the truth
        candidate = EndQuorumEpochRequestPreferredCandidate(
            candidate_id=rng.choice(small), candidate_directory_id=rng.choice(uuids)
        )
        ended = EndQuorumEpochRequestPartition(
            leader_id=leader, leader_epoch=epoch, preferred_candidates=(candidate,)
        )
        topic = EndQuorumEpochRequestTopic(topic_name=TOPIC, partitions=(ended,))
        return EndQuorumEpochRequest(cluster_id=rng.choice(names), topics=(topic,))

    def any_fetch() -> FetchRequest:
        return replica_fetch(
            epoch=rng.choice(epochs),
            offset=rng.choice(large),
            last_epoch=rng.choice(epochs),
            replica=rng.choice(small),
            uuid=rng.choice((UUID(int=0), UUID(int=5))),
            wait_ms=rng.choice((-1, 0, 1)),
            max_bytes=rng.choice((-(2**31), -1, 0, 1, 2**31 - 1)),
            cluster_id=rng.choice(names),
        )

    for node in quorum.ids:
        for _ in range(60):
            with RawClient(quorum.port(node)) as client:
                try:
                    client.ask(VOTE, 2, any_vote(), VoteResponse)
                    client.ask(BEGIN, 1, any_begin(), BeginQuorumEpochResponse)
                    client.ask(END, 1, any_end(), EndQuorumEpochResponse)
                    client.ask(FETCH, rng.choice((15, 16, 17, 18)), any_fetch(), FetchResponse)
                except Hungup:
                    continue
