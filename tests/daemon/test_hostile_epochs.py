"""Thousands of forged raft requests from one client that nobody has recognised: no election.

They name epochs and leaders that are not, under ids and storage ids that everybody can read.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

import pytest

from quorumd.raft.types import uuid_from_text
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochRequestLeaderEndpoint,
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
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    FetchResponse,
)
from quorumd.wire.messages.vote import (
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
    VoteResponse,
)
from quorumd.wire.schema import Message
from tests.support.live_cluster import TOPIC, Cluster
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.usefixtures("harmless")

FETCH, VOTE, BEGIN, END = 1, 52, 53, 54
HUGE = 1_162_891_075
STRANGER = 4711
ROUNDS = 3


class Request(NamedTuple):
    key: int
    version: int
    message: Message
    answer: type[Message]


def vote(epoch: int, replica: int, uuid: UUID, cluster_id: str | None, pre_vote: bool) -> Message:
    asked = VoteRequestPartition(
        replica_epoch=epoch,
        replica_id=replica,
        replica_directory_id=uuid,
        last_offset_epoch=epoch - 1,
        last_offset=10**12,
        pre_vote=pre_vote,
    )
    topic = VoteRequestTopic(topic_name=TOPIC, partitions=(asked,))
    return VoteRequest(cluster_id=cluster_id, topics=(topic,))


def begin(epoch: int, leader: int, cluster_id: str | None, port: int | None) -> Message:
    begun = BeginQuorumEpochRequestPartition(leader_id=leader, leader_epoch=epoch)
    at = BeginQuorumEpochRequestLeaderEndpoint(name="CONTROLLER", host="127.0.0.1", port=port or 0)
    return BeginQuorumEpochRequest(
        cluster_id=cluster_id,
        topics=(BeginQuorumEpochRequestTopic(topic_name=TOPIC, partitions=(begun,)),),
        leader_endpoints=(at,) if port else (),
    )


def end(epoch: int, leader: int, cluster_id: str | None, heirs: dict[int, UUID]) -> Message:
    ended = EndQuorumEpochRequestPartition(
        leader_id=leader,
        leader_epoch=epoch,
        preferred_successors=tuple(heirs),
        preferred_candidates=tuple(
            EndQuorumEpochRequestPreferredCandidate(candidate_id=heir, candidate_directory_id=uuid)
            for heir, uuid in heirs.items()
        ),
    )
    topic = EndQuorumEpochRequestTopic(topic_name=TOPIC, partitions=(ended,))
    return EndQuorumEpochRequest(cluster_id=cluster_id, topics=(topic,))


def fetch(epoch: int, replica: int, uuid: UUID, cluster_id: str | None) -> Message:
    asked = FetchRequestPartition(
        partition=0,
        current_leader_epoch=epoch,
        fetch_offset=0,
        last_fetched_epoch=0,
        partition_max_bytes=0,
        replica_directory_id=uuid,
    )
    return FetchRequest(
        cluster_id=cluster_id,
        replica_state=FetchRequestReplicaState(replica_id=replica),
        max_wait_ms=0,
        topics=(FetchRequestTopic(topic_id=UUID(int=1), partitions=(asked,)),),
    )


def forged(epoch: int, cluster: str, uuids: dict[int, UUID], port: int) -> Iterator[Request]:
    """Every variation once. A Fetch of the present epoch is left out: that one is no claim."""
    keys = [*uuids.items(), (STRANGER, UUID(int=77)), *((i, UUID(int=78)) for i in uuids)]
    epochs = (epoch, epoch + 1, epoch + 2, epoch + 1000, HUGE)
    for (replica, uuid), at, named in itertools.product(keys, epochs, (None, cluster)):
        for version, pre_vote in ((0, False), (1, False), (2, False), (2, True)):
            message = vote(at, replica, uuid, named, pre_vote)
            yield Request(VOTE, version, message, VoteResponse)
        for version, claimed in itertools.product((0, 1), (None, port)):
            message = begin(at, replica, named, claimed)
            yield Request(BEGIN, version, message, BeginQuorumEpochResponse)
        for version, heirs in itertools.product((0, 1), (uuids, {})):
            message = end(at, replica, named, heirs)
            yield Request(END, version, message, EndQuorumEpochResponse)
        if at > epoch:
            for version in (15, 17, 18):
                yield Request(FETCH, version, fetch(at, replica, uuid, named), FetchResponse)


def test_the_packet_that_once_deposed_a_leader(quorum: Cluster) -> None:
    for node in (quorum.wait_leader(), *quorum.ids):
        message = vote(HUGE, STRANGER, UUID(int=77), None, pre_vote=False)
        with RawClient(quorum.port(node)) as client:
            answer = client.ask(VOTE, 2, message, VoteResponse)
        assert (answer.error_code, answer.topics) == (ErrorCode.BROKER_NOT_AVAILABLE, ())


def test_thousands_of_forged_requests_cause_no_election(quorum: Cluster) -> None:
    """In every order: each node gets all of them, several times, shuffled."""
    leader = quorum.wait_leader()
    status = quorum.status(leader)
    uuids = {row["id"]: uuid_from_text(row["storage_id"]) for row in status["voters"]}
    rng, sent = random.Random(17), 0
    for _ in range(ROUNDS):
        for node in quorum.ids:
            port = quorum.port(rng.choice(quorum.ids))
            requests = list(forged(status["epoch"], status["cluster_id"], uuids, port))
            rng.shuffle(requests)
            with RawClient(quorum.port(node)) as client:
                for request in requests:
                    client.ask(*request)
            sent += len(requests)
    assert sent > 5000
