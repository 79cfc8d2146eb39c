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

from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.begin_quorum_epoch import (
    BeginQuorumEpochResponse,
)
from quorumd.wire.messages.end_quorum_epoch import (
    EndQuorumEpochResponse,
)
from quorumd.wire.messages.fetch import (
    FetchResponse,
)
from quorumd.wire.messages.vote import (
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
    begin,
    end,
    replica_fetch,
    see,
    vote,
)
from tests.support.live_cluster import Cluster
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.usefixtures("harmless")

HUGE = 1_162_891_075
ROUNDS = 3


class Request(NamedTuple):
    key: int
    version: int
    message: Message
    answer: type[Message]


def forged(epoch: int, cluster: str, uuids: dict[int, UUID], port: int) -> Iterator[Request]:
    """Every variation once. A Fetch of the present epoch is left out: that one needs no confirmation."""
    keys = [*uuids.items(), (UNKNOWN_ID, UNKNOWN_UUID), *((i, UUID(int=78)) for i in uuids)]
    epochs = (epoch, epoch + 1, epoch + 2, epoch + 1000, HUGE)
    for (replica, uuid), at, named in itertools.product(keys, epochs, (None, cluster)):
        for version, pre_vote in ((0, False), (1, False), (2, False), (2, True)):
            message = vote(named, epoch=at, replica=replica, uuid=uuid, pre_vote=pre_vote)
            yield Request(VOTE, version, message, VoteResponse)
        for version, port_named in itertools.product((0, 1), (None, port)):
            message = begin(named, epoch=at, leader=replica, port=port_named)
            yield Request(BEGIN, version, message, BeginQuorumEpochResponse)
        for version, successors in itertools.product((0, 1), (uuids, {})):
            message = end(named, epoch=at, leader=replica, successors=successors)
            yield Request(END, version, message, EndQuorumEpochResponse)
        if at > epoch:
            for version in (15, 17, 18):
                message = replica_fetch(epoch=at, replica=replica, uuid=uuid, cluster_id=named)
                yield Request(FETCH, version, message, FetchResponse)


def test_the_packet_that_once_deposed_a_leader(quorum: Cluster) -> None:
    for node in (quorum.wait_leader(), *quorum.ids):
        message = vote(None, epoch=HUGE)
        with RawClient(quorum.port(node)) as client:
            answer = client.ask(VOTE, 2, message, VoteResponse)
        assert (answer.error_code, answer.topics) == (ErrorCode.BROKER_NOT_AVAILABLE, ())


def test_thousands_of_forged_requests_cause_no_election(quorum: Cluster) -> None:
    """In every order: each node gets all of them, several times, shuffled."""
    seen = see(quorum)
    rng, sent = random.Random(17), 0
    for _ in range(ROUNDS):
        for node in quorum.ids:
            port = quorum.port(rng.choice(quorum.ids))
            requests = list(forged(seen.epoch, seen.cluster_id, seen.uuids, port))
            rng.shuffle(requests)
            with RawClient(quorum.port(node)) as client:
                for request in requests:
                    client.ask(*request)
            sent += len(requests)
    assert sent > 5000
