"""DescribeConfigs: known resources without configuration, errors for others."""

from __future__ import annotations

import pytest

from quorumd.raft.types import ReplicaKey
from quorumd.server.requests.describe_configs import describe_configs
from quorumd.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
)
from tests.support.cluster import FixedView, decoded_again

TOPIC = "__cluster_metadata"


@pytest.mark.parametrize("version", range(1, 5))
def test_known_resources_have_no_configuration_and_others_an_error(version: int) -> None:
    asked = [(2, TOPIC), (2, "other"), (4, "3"), (4, ""), (4, "8"), (4, "x"), (8, "1"), (-5, "")]
    request = DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsRequestResource(resource_type=kind, resource_name=name)
            for kind, name in asked
        )
    )
    answer = decoded_again(describe_configs(FixedView(), request), version)
    assert [(r.resource_type, r.resource_name) for r in answer.results] == asked
    assert [r.error_code for r in answer.results] == [0, 3, 0, 0, 42, 42, 42, 42]
    assert all(r.configs == () for r in answer.results)
    assert all(bool(r.error_message) == bool(r.error_code) for r in answer.results)


def test_a_node_that_observes_is_one_of_the_nodes_that_it_knows() -> None:
    resource = DescribeConfigsRequestResource(resource_type=4, resource_name="8")
    request = DescribeConfigsRequest(resources=(resource,))
    (found,) = describe_configs(FixedView(local=ReplicaKey(8)), request).results
    assert found.error_code == 0
