"""A client's request on its way to the leader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumd.server.dispatch import Dispatch
from quorumd.server.model.metrics import Metrics
from quorumd.server.net.inbound_request import InboundRequest, RequestConnection
from quorumd.server.partition.partition import Partition
from quorumd.server.peers.forwarded_request import ForwardedRequest
from quorumd.wire.codec import encode
from quorumd.wire.messages.describe_quorum import DescribeQuorumRequest

REMOVE_VOTER, DESCRIBE_QUORUM = 81, 55


def test_a_request_that_loses_its_frame_while_it_waits_is_forwarded_whole() -> None:
    frame = b"header|body"
    request = InboundRequest(
        cast(RequestConnection, None), REMOVE_VOTER, 0, 1, frame, frame.index(b"b"), 0
    )
    forwarded = ForwardedRequest(request, "node", None)
    request.frame = b""  # its connection is gone
    assert forwarded.frame(0, 5).endswith(b"node\0body")
    assert forwarded.is_sent


@pytest.mark.pure
@pytest.mark.parametrize(
    ("software", "is_reshaped"), [("quorumctl", False), ("apache-kafka-java", True), ("", True)]
)
def test_software_of_this_project_gets_the_leaders_description_as_it_is(
    software: str, is_reshaped: bool
) -> None:
    """Others get it as from a node of Kafka's."""
    forwarded: list[Any] = []
    partition = SimpleNamespace(
        view=SimpleNamespace(is_leader=False, leader_id=2),
        outbound=SimpleNamespace(
            forward=lambda request, otherwise, *, reshape: forwarded.append(reshape)
        ),
        produce_handler=SimpleNamespace(handle=None),
        raft_handler=SimpleNamespace(election=None, fetch_snapshot=None),
    )
    connection = SimpleNamespace(
        client_software_name=software, listener=SimpleNamespace(name="CONTROLLER")
    )
    request = InboundRequest(
        cast(RequestConnection, connection),
        DESCRIBE_QUORUM,
        2,
        1,
        encode(DescribeQuorumRequest(), 2),
        0,
        0,
    )
    Dispatch(cast(Partition, partition), Metrics()).dispatch(request)
    assert [reshape is not None for reshape in forwarded] == [is_reshaped]


@pytest.mark.pure
@pytest.mark.parametrize(
    ("software", "is_kafka_log", "by"),
    [
        ("apache-kafka-java", False, "leader"),
        ("apache-kafka-java", True, "here"),
        ("quorumctl", False, "here"),
    ],
)
def test_a_change_goes_to_the_leader_in_nobodys_name_but_its_clients(
    software: str, is_kafka_log: bool, by: str
) -> None:
    """A leader of Kafka's would judge it by this node's certificate."""
    done: list[str] = []
    partition = SimpleNamespace(
        view=SimpleNamespace(is_leader=False, leader_id=2, is_kafka_log=is_kafka_log),
        outbound=SimpleNamespace(forward=lambda *_, **__: done.append("leader")),
        produce_handler=SimpleNamespace(handle=None),
        raft_handler=SimpleNamespace(
            election=None, fetch_snapshot=None, change=lambda request: lambda: done.append("here")
        ),
    )
    connection = cast(RequestConnection, SimpleNamespace(client_software_name=software))
    request = InboundRequest(connection, REMOVE_VOTER, 0, 1, b"", 0, 0)
    Dispatch(cast(Partition, partition), Metrics()).dispatch(request)
    assert done == [by]
