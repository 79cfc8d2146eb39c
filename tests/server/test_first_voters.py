"""Who may be formatted for the log of a Kafka quorum."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quorumd.config.addresses import ConfiguredVoter
from quorumd.server.admin.first_voters import FormatRefused, check_kafka_log


def config(node_id: int, *, quorum_witness: bool) -> Any:
    voters = (ConfiguredVoter(1, "a", 9093), ConfiguredVoter(2, "b", 9093))
    return SimpleNamespace(node_id=node_id, quorum_voters=voters, quorum_witness=quorum_witness)


def test_a_witness_alone_may_have_the_id_of_a_kafka_controller() -> None:
    for node_id, quorum_witness in ((2, True), (3, True), (3, False)):
        check_kafka_log(config(node_id, quorum_witness=quorum_witness), "id", is_new=False)
    with pytest.raises(FormatRefused, match=r"node\.id 2 is that of a voter"):
        check_kafka_log(config(2, quorum_witness=False), "id", is_new=False)


def test_it_names_its_cluster_and_no_first_voters() -> None:
    for cluster_id, is_new, said in (("id", True, "that exists"), (None, False, "--cluster-id")):
        with pytest.raises(FormatRefused, match=said):
            check_kafka_log(config(3, quorum_witness=True), cluster_id, is_new=is_new)
