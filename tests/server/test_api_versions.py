"""ApiVersions in every version: APIs, features, and the software of KIP-511."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from quorumd.server.dispatch import Dispatch
from quorumd.server.model.metrics import Metrics
from quorumd.server.net.inbound_request import InboundRequest, RequestConnection
from quorumd.server.partition.partition import Partition
from quorumd.server.requests.api_versions import api_versions, api_versions_unsupported
from quorumd.wire.codec import encode
from quorumd.wire.messages.api_versions import ApiVersionsRequest
from quorumd.wire.registry import APIS, CONTROLLER_KEYS, FIRST_OWN_KEY
from tests.support.cluster import FixedView, decoded_again

OF_THE_ACTIVE_CONTROLLER = {
    "AllocateProducerIds",
    "AlterPartition",
    "AssignReplicasToDirs",
    "BrokerHeartbeat",
    "BrokerRegistration",
    "ControllerRegistration",
    "Envelope",
}
SOFTWARE = ApiVersionsRequest(client_software_name="a-client", client_software_version="1.0")


@pytest.mark.parametrize("version", range(6))
def test_api_versions_lists_exactly_what_is_spoken(version: int) -> None:
    answer = decoded_again(api_versions(FixedView(), SOFTWARE, version), version)
    assert answer.error_code == 0
    listed = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
    spoken = {key: (spec.min_version, spec.max_version) for key, spec in APIS.items()}
    # Produce from 0, as librdkafka below 2.12 expects of a broker.
    ours = {key: spoken.pop(key) for key in list(spoken) if key >= FIRST_OWN_KEY}
    beside_kafka = FixedView(is_kafka_log=True, is_witness=True)
    answer = decoded_again(api_versions(beside_kafka, SOFTWARE, version), version)
    assert {key.api_key for key in answer.api_keys} == set(spoken)
    for key in CONTROLLER_KEYS:
        del spoken[key]
    assert {APIS[key].name for key in CONTROLLER_KEYS} == OF_THE_ACTIVE_CONTROLLER
    assert listed == spoken | {0: (0, 13)}
    if version >= 3:
        own = replace(SOFTWARE, client_software_name="quorumctl")
        answer = decoded_again(api_versions(FixedView(), own, version), version)
        assert {key.api_key for key in answer.api_keys} == {*ours, *spoken}


def test_a_feature_with_minimum_0_is_shown_from_version_4_on() -> None:
    for version, expected in ((3, []), (4, [("kraft.version", 0, 1)])):
        answer = decoded_again(api_versions(FixedView(), SOFTWARE, version), version)
        shown = [(f.name, f.min_version, f.max_version) for f in answer.supported_features]
        assert shown == expected
        finalized = [
            (f.name, f.min_version_level, f.max_version_level) for f in answer.finalized_features
        ]
        assert (finalized, answer.finalized_features_epoch) == ([("kraft.version", 1, 1)], 3)


def test_a_feature_at_level_0_is_not_finalized() -> None:
    view = FixedView(kraft_version=0, kraft_version_offset=-1)
    answer = decoded_again(api_versions(view, SOFTWARE, 4), 4)
    assert (answer.finalized_features, answer.finalized_features_epoch) == ((), -1)


@pytest.mark.parametrize(
    ("name", "software_version", "error"),
    [
        ("apache-kafka-java", "4.3.1", 0),
        ("a", "1", 0),
        ("", "1.0", 42),
        ("a-client", "", 42),
        ("-client", "1.0", 42),
        ("client.", "1.0", 42),
        ("a client", "1.0", 42),
        ("client\n", "1.0", 42),
        ("clïent", "1.0", 42),
        ("a-client", "1.0-", 42),
        ("a-client", "1.0 beta", 42),
    ],
)
def test_software_must_be_named_as_kip_511_asks(
    name: str, software_version: str, error: int
) -> None:
    request = ApiVersionsRequest(
        client_software_name=name, client_software_version=software_version
    )
    answer = decoded_again(api_versions(FixedView(), request, 3), 3)
    assert (answer.error_code, bool(answer.api_keys)) == (error, not error)
    assert api_versions(FixedView(), ApiVersionsRequest(), 2).error_code == 0


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "error"),
    [
        ("cluster-of-tests", 2, 0),
        (None, -1, 0),
        ("cluster-of-tests", 3, 129),
        ("another", 2, 129),
        (None, 3, 0),
        ("another", -1, 0),
        ("cluster-of-tests", 0, 129),
    ],
)
def test_who_means_another_node_is_told_to_begin_anew(
    cluster_id: str | None, node_id: int, error: int
) -> None:
    """KIP-1242: an address may have become another node's."""
    request = replace(SOFTWARE, cluster_id=cluster_id, node_id=node_id)
    answer = decoded_again(api_versions(FixedView(), decoded_again(request, 5), 5), 5)
    assert (answer.error_code, bool(answer.api_keys)) == (error, not error)


@pytest.mark.parametrize(("node_id", "error"), [(-1, 0), (2, 0), (3, 129)])
def test_a_node_that_does_not_know_its_cluster_yet_may_be_of_the_clients(
    node_id: int, error: int
) -> None:
    request = replace(SOFTWARE, cluster_id="cluster-of-tests", node_id=node_id)
    assert api_versions(FixedView(cluster_id=None), request, 5).error_code == error


def test_an_unknown_version_of_api_versions_is_told_the_known_ones() -> None:
    assert encode(api_versions_unsupported(), 0).hex() == "002300000001001200000005"


@pytest.mark.pure
@pytest.mark.parametrize(("name", "known"), [("a-client", "a-client"), ("-no name", "before")])
def test_a_name_that_is_refused_does_not_count_for_what_follows(name: str, known: str) -> None:
    partition = SimpleNamespace(
        view=FixedView(),
        produce_handler=SimpleNamespace(handle=None),
        raft_handler=SimpleNamespace(election=None, fetch_snapshot=None),
    )
    connection = SimpleNamespace(
        client_software_name="before", client_software_version="1", send=lambda *_: None
    )
    body = encode(replace(SOFTWARE, client_software_name=name), 3)
    request = InboundRequest(cast(RequestConnection, connection), 18, 3, 1, body, 0, 0)
    Dispatch(cast(Partition, partition), Metrics()).dispatch(request)
    assert connection.client_software_name == known
