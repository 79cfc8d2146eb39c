"""What a later Kafka asks of its voters: a witness says so, and keeps from becoming one."""

from __future__ import annotations

import pytest

from quorumd.server.model.kafka_drift import KAFKA_FEATURES, KafkaDrift
from quorumd.server.model.metrics import Metrics
from quorumd.server.requests.api_versions import api_versions
from quorumd.server.translate.unknown_records import finalized_levels, news_of
from quorumd.wire.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseApiKey,
    ApiVersionsResponseFinalizedFeature,
)
from quorumd.wire.records import Record, build_batch
from quorumd.wire.registry import APIS
from tests.support.cluster import FixedView

FETCH, VOTE = 1, 52


def feature_level(name: str, level: int) -> bytes:
    """A FeatureLevelRecord, as Kafka frames it."""
    text = name.encode()
    return b"\x01\x0c\x00" + bytes((len(text) + 1,)) + text + level.to_bytes(2, "big") + b"\0"


def batch(*values: bytes) -> bytes:
    return build_batch([Record(timestamp=1, value=value) for value in values], epoch=1)


def announcing(*levels: tuple[str, int], votes: tuple[int, int] = (0, 2)) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        api_keys=(
            ApiVersionsResponseApiKey(api_key=VOTE, min_version=votes[0], max_version=votes[1]),
        ),
        finalized_features=tuple(
            ApiVersionsResponseFinalizedFeature(
                name=name, max_version_level=level, min_version_level=level
            )
            for name, level in levels
        ),
    )


def test_what_kafka_4_4_finalizes_is_no_obstacle() -> None:
    drift = KafkaDrift(Metrics())
    highest = [(name, level) for name, (_, level) in KAFKA_FEATURES.items()]
    drift.note_announced("node 1", announcing(*highest))
    drift.note_records((), highest)
    assert drift.obstacles == []


@pytest.mark.parametrize(
    ("name", "level", "said"),
    [
        ("metadata.version", 99, "metadata.version 99, and this version knows 7 to 33"),
        ("metadata.version", 3, "metadata.version 3, and this version knows 7 to 33"),
        ("kraft.version", 2, "kraft.version 2, and this version knows 0 to 1"),
        ("fancy.version", 1, "fancy.version 1, and this version does not know that feature"),
    ],
)
def test_a_level_that_is_not_known_is_an_obstacle_until_it_is_lowered(
    name: str, level: int, said: str
) -> None:
    drift = KafkaDrift(Metrics())
    drift.note_announced("node 1", announcing((name, level)))
    [obstacle] = drift.obstacles
    assert said in obstacle
    drift.note_records((), finalized_levels(batch(feature_level(name, 0))))
    assert drift.obstacles == []
    drift.note_records((), finalized_levels(batch(b"\x01\x14\x00", feature_level(name, level))))
    assert drift.obstacles == [obstacle]


def test_a_controller_that_serves_later_votes_alone_is_an_obstacle_until_it_serves_others() -> None:
    drift = KafkaDrift(Metrics())
    drift.note_announced("node 1", announcing())
    drift.note_announced("node 2", announcing(votes=(3, 4)))
    assert drift.obstacles == [
        "node 2 serves Vote 3 to 4, and this version knows 0 to 2: upgrade quorumd"
    ]
    drift.note_announced("node 2", announcing(votes=(2, 4)))
    assert drift.obstacles == []


def test_a_controller_that_serves_former_fetches_alone_is_an_obstacle() -> None:
    drift, lowest = KafkaDrift(Metrics()), APIS[FETCH].min_version
    for highest, count in ((lowest, 0), (lowest - 1, 1)):
        served = ApiVersionsResponseApiKey(api_key=FETCH, min_version=0, max_version=highest)
        drift.note_announced("node 2", ApiVersionsResponse(api_keys=(served,)))
        assert [f"node 2 serves Fetch 0 to {highest}" in each for each in drift.obstacles] == (
            [True] * count
        )


def test_records_of_a_snapshot_are_looked_at_batch_by_batch() -> None:
    metrics = Metrics()
    drift = KafkaDrift(metrics)
    drift.note_records(
        *news_of(
            [
                batch(b"\x01\x63\x00?", b"\x01\x63\x00?"),
                batch(feature_level("metadata.version", 40)),
            ]
        )
    )
    assert [text.split(",")[0] for text in drift.obstacles] == [
        "the quorum has metadata.version 40",
        "the log has a record: type 99",
    ]
    assert metrics.unknown == {"record: type 99": 1}


@pytest.mark.parametrize("offers", [True, False])
def test_a_witness_that_could_not_promise_it_announces_no_feature(offers: bool) -> None:
    """Kafka's leader refuses AddRaftVoter then: the node does not support the finalized kraft.version."""
    view = FixedView(is_kafka_log=True, is_witness=True, offers_vote=offers)
    asked = ApiVersionsRequest(
        client_software_name="apache-kafka-java", client_software_version="1"
    )
    features = {each.name for each in api_versions(view, asked, 4).supported_features}
    assert features == (set(KAFKA_FEATURES) if offers else set())
