"""Real nodes whose links are mutual TLS: they do what they do without, and nobody else is taken for one."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from quorumd.raft.types import uuid_from_text
from quorumd.server.model.topic import METADATA
from quorumd.wire.messages.add_raft_voter import (
    AddRaftVoterRequest,
    AddRaftVoterRequestListener,
    AddRaftVoterResponse,
)
from quorumd.wire.messages.vote import (
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
    VoteResponse,
)
from quorumd.wire.registry import APIS
from tests.support.authority import Authority
from tests.support.live_cluster import running
from tests.support.node_requests import BY_NODES, replica_fetch, request_of
from tests.support.ports import free_ports
from tests.support.raw_client import Hungup, RawClient, frame, request
from tests.support.secure_cluster import PLAIN, SECURE, Appending, SecureCluster
from tests.support.shaking_hands import shaking_hands

QUICK = {"quorum.fetch.timeout.ms": 1500, "quorum.election.timeout.ms": 700}
CLIENTS = "CLIENTS"
VOTE = 52


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    """Three nodes for a whole module; a test leaves all of them running."""
    cluster = SecureCluster(tmp_path_factory.mktemp("secure"), settings=QUICK)
    for name in ("client", "quorumd-9", "quorumd-02"):
        cluster.authority.store(name)
    with running(cluster):
        yield cluster


@pytest.fixture
def cluster(folder: Path) -> Iterator[SecureCluster]:
    """Three nodes, and one beside them that does not run; they may be treated badly."""
    made = SecureCluster(folder, observers=1, settings=QUICK)
    try:
        made.format()
        made.start(*made.voters)
        made.wait_ready(*made.voters)
        yield made
    finally:
        made.kill_all()


# -- a quorum like any other


def test_a_killed_leader_is_replaced_and_nothing_is_lost(cluster: SecureCluster) -> None:
    with Appending(cluster.bootstrap) as appending:
        appending.wait_progress()
        leader = cluster.wait_leader()
        cluster.kill(leader)
        cluster.wait_leader(other_than=leader)
        appending.wait_progress()
        cluster.start(leader)
        cluster.wait_ready(leader)
        appending.wait_progress()
    cluster.assert_same_logs()
    appending.assert_nothing_lost(cluster)


@pytest.mark.parametrize("is_static", [True, False], ids=["quorum.voters", "bootstrap servers"])
def test_a_quorum_that_was_down_whole_comes_up(cluster: SecureCluster, is_static: bool) -> None:
    if not is_static:
        cluster.is_static = False
        cluster.roll("TLS first", *cluster.voters)
        assert "quorum.voters" not in cluster.config_path(1).read_text()
    with Appending(cluster.bootstrap) as appending:
        appending.wait_progress()
    for node in cluster.voters:
        cluster.kill(node)
    cluster.start(*cluster.voters)
    cluster.wait_ready(*cluster.voters)
    with Appending(cluster.bootstrap) as again:
        again.wait_progress()
    cluster.assert_same_logs()
    for load in (appending, again):
        load.assert_nothing_lost(cluster)


def added(cluster: SecureCluster, node: int, asked: int) -> AddRaftVoterResponse:
    """An operator asks this node, by plaintext, to have the other one added."""
    where = ((SECURE, cluster.secure_ports[node]), (PLAIN, cluster.port(node)))
    message = AddRaftVoterRequest(
        timeout_ms=15_000,
        voter_id=node,
        voter_directory_id=uuid_from_text(cluster.status(node)["storage_id"]),
        listeners=tuple(
            AddRaftVoterRequestListener(name=name, host="127.0.0.1", port=port)
            for name, port in where
        ),
    )
    with RawClient(cluster.port(asked), timeout_s=30) as client:
        return client.ask(80, 1, message, AddRaftVoterResponse)


def test_a_voter_is_added_through_any_node_and_joins_again_by_itself_with_a_new_disk(
    cluster: SecureCluster,
) -> None:
    """The change is passed on to the leader; the rest is UpdateRaftVoter, AddRaftVoter, RemoveRaftVoter."""
    settings = {"quorum.bootstrap.servers": cluster.peers_address(1, "TLS first")}
    for node in cluster.ids:
        cluster.is_static = False
        cluster.write_config(node, {"quorum.auto.join": "true", **settings})
    for node in cluster.voters:
        cluster.restart(node)
    with Appending(cluster.bootstrap) as appending:
        cluster.start(4)
        cluster.wait_ready(4)
        leader = cluster.wait_leader()
        follower = next(node for node in cluster.voters if node != leader)
        assert added(cluster, 4, follower).error_code in (0, 126)  # done, or it was quicker itself
        cluster.wait_for(lambda: voters(cluster) == [1, 2, 3, 4], "four voters")
        cluster.kill(4)
        cluster.new_disk(4)
        cluster.start(4)
        cluster.wait_for(lambda: cluster.status(4)["role"] == "follower", "node 4 votes again")
        appending.wait_progress()
    cluster.assert_same_logs()
    appending.assert_nothing_lost(cluster)


def voters(cluster: SecureCluster) -> list[int]:
    return sorted(voter["id"] for voter in cluster.status(cluster.wait_leader())["voters"])


# -- who is no node


def is_refused(
    cluster: SecureCluster, node: int, key: int, version: int, as_node: int, name: str | None
) -> bool:
    """Whether a raft request is answered by the end of its connection; without a name it is plaintext."""
    port = cluster.port(node) if name is None else cluster.secure_ports[node]
    tls = None if name is None else cluster.client_context(name)
    return is_refused_at(port, tls, key, version, as_node)


def is_refused_at(
    port: int, tls: ssl.SSLContext | None, key: int, version: int, as_node: int
) -> bool:
    with RawClient(port, tls=tls) as client:
        message = request_of(key, as_node, version)
        client.send(frame(request(key, version, message, client_id=f"raft-client-{as_node}")))
        try:
            return not client.read_frame()
        except Hungup:
            return True


@pytest.mark.parametrize(("key", "version"), BY_NODES)
def test_a_raft_request_counts_by_the_certificate_of_the_node_that_it_names(
    quorum: SecureCluster, key: int, version: int
) -> None:
    epoch = quorum.status(1)["epoch"]
    assert not is_refused(quorum, 1, key, version, 2, "quorumd-2"), "its own"
    for name in ("client", "quorumd-3", "quorumd-9", "quorumd-02", None):
        assert is_refused(quorum, 1, key, version, 2, name), f"{APIS[key].name} by {name}"
    assert quorum.status(1)["epoch"] == epoch


def test_a_replica_without_id_has_to_be_a_node_and_is_one_by_its_certificate(
    quorum: SecureCluster,
) -> None:
    with RawClient(quorum.secure_ports[1], tls=quorum.client_context("client")) as client:
        client.send(frame(request(1, 17, replica_fetch(-1, 17))))
        with pytest.raises(Hungup):
            client.read_frame()


def test_a_client_with_a_certificate_is_a_client(quorum: SecureCluster) -> None:
    message = VoteRequest()
    with RawClient(quorum.secure_ports[1], tls=quorum.client_context("client")) as client:
        # Whoever is named by nobody is refused as before: the request has no valid shape.
        assert client.ask(VOTE, 2, message, VoteResponse).error_code == 42


def test_a_refused_request_is_counted_and_logged(quorum: SecureCluster) -> None:
    is_refused(quorum, 2, VOTE, 2, 3, "client")
    quorum.wait_logged(2, "Vote in the name of node 3 by CN=client, who may not")


def test_a_ca_that_the_clients_listener_alone_trusts_makes_no_node(cluster: SecureCluster) -> None:
    """A stranger's CA can write any name into a certificate."""
    corporate = Authority(cluster.folder / "corporate")
    port = free_ports(1)[0]
    at = {SECURE: cluster.secure_ports[1], PLAIN: cluster.port(1), CLIENTS: port}
    clients = "listener.name.clients.ssl"
    changes = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in at.items()),
        "listener.security.protocol.map": f"{PLAIN}:PLAINTEXT,{SECURE}:SSL,{CLIENTS}:SSL",
        f"{clients}.truststore.location": corporate.trust,
        f"{clients}.client.auth": "required",
    }
    cluster.write_config(1, changes)
    cluster.restart(1)
    context = ssl.create_default_context(cafile=str(cluster.authority.trust))
    context.load_cert_chain(corporate.store("quorumd-2"))
    for key, version in BY_NODES:
        assert is_refused_at(port, context, key, version, 2), APIS[key].name
    with RawClient(port, tls=context) as client:
        assert client.ask(VOTE, 2, VoteRequest(), VoteResponse).error_code == 42, "it is a client"
    cluster.wait_said(1, "warnings", "quorumd-2 on listener CLIENTS, which takes no node")
    # A certificate that the nodes' listener would take is as good here.
    cluster.write_config(1, {**changes, f"{clients}.truststore.location": cluster.authority.trust})
    cluster.restart(1)
    context.load_cert_chain(cluster.keystore("quorumd-2"))
    assert not is_refused_at(port, context, VOTE, 2, 2)


def test_a_node_with_the_certificate_of_another_is_alone(cluster: SecureCluster) -> None:
    """Though it believes in itself: neither does it get answers, nor is it asked."""
    cluster.authority.store("stolen-3")
    cluster.stop(3)
    changes = {
        "ssl.keystore.location": cluster.keystore("stolen-3"),
        "quorum.node.principals": '"User:CN=quorumd-{id};User:CN=stolen-{id}"',
    }
    cluster.write_config(3, changes)
    cluster.start(3)
    with Appending(cluster.bootstrap.rpartition(",")[0]) as appending:
        appending.wait_progress()
        said = cluster.wait_said(1, "warnings", "certificate is for")
        assert said[0].startswith("node 3 at ")
        assert "its certificate is for CN=stolen-3" in said[0]
        cluster.wait_said(3, "unreachable_peers", "closed the connection instead of responding")
        cluster.wait_said(3, "warnings", "closed the connection instead of responding")
        leader = cluster.wait_leader()
        cluster.wait_said(leader, "warnings", "in the name of node 3 by CN=stolen-3, who may not")
        end = cluster.status(3)["log_end_offset"]
        appending.wait_progress()
        assert cluster.status(3)["log_end_offset"] == end
        assert not cluster.is_ready(3)
    assert not appending.failures


def test_a_peer_in_plaintext_is_called_that(cluster: SecureCluster) -> None:
    """Node 3 has forgotten what TLS is: its TLS port speaks plaintext."""
    cluster.stop(3)
    cluster.write_config(
        3, {"listener.security.protocol.map": f"{PLAIN}:PLAINTEXT,{SECURE}:PLAINTEXT"}
    )
    cluster.start(3)
    said = cluster.wait_said(1, "warnings", "node 3")
    assert said[0].startswith("node 3 responded in plaintext on a listener that is TLS here")


def test_a_peer_whose_certificate_has_expired_is_called_that_in_status_and_on_the_page(
    cluster: SecureCluster,
) -> None:
    """None starts with such a certificate; one that has stood still for hours has it."""
    expired = cluster.authority.store("quorumd-3", ends_in=timedelta(hours=-2), file="late")
    cluster.stop(3)
    with shaking_hands(expired, cluster.secure_ports[3]):
        where = f"127.0.0.1:{cluster.secure_ports[3]}"
        why = "its certificate (CN=quorumd-3, issued by CN=ca) expired 2 h ago"
        (warning,) = cluster.wait_said(1, "warnings", "node 3 ")
        assert warning.startswith(f"node 3 at {where}: {why}")
        (unreachable,) = cluster.status(1)["unreachable_peers"]
        assert where in unreachable
        assert why in unreachable

        def found() -> list[dict[str, str]]:
            with urllib.request.urlopen(cluster.http_url(1, "/page.json"), timeout=5) as answer:
                problems = json.load(answer)["findings"]
            return [each for each in problems if why in each["text"]]

        (problem,) = cluster.wait_for(found, "the problem on the page")
        assert problem == {"level": "warning", "text": f"This node: {warning}"}


def test_pre_votes_of_a_stranger_move_no_epoch(quorum: SecureCluster) -> None:
    """A hundred of them, by TLS and by plaintext."""
    before = quorum.status(1)["epoch"]
    asked = VoteRequestPartition(replica_id=2, replica_epoch=before + 10)
    topic = VoteRequestTopic(topic_name=METADATA.name, partitions=(asked,))
    for number in range(100):
        name = "client" if number % 2 else None
        port = quorum.secure_ports[1] if name else quorum.port(1)
        tls = quorum.client_context(name) if name else None
        with RawClient(port, tls=tls) as client, pytest.raises(Hungup):
            client.ask(VOTE, 1, VoteRequest(topics=(topic,)), VoteResponse)
    assert quorum.status(1)["epoch"] == before
