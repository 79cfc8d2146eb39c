"""One quorum of real Kafka controllers for all tests that need one, and a node that observes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.commands import quorumctl
from tests.support.kafka_observer import KafkaObserver
from tests.support.kafka_quorum import KafkaQuorum, wait_for

QUICK_SNAPSHOTS = {
    "metadata.log.max.record.bytes.between.snapshots": "2000",
    "internal.metadata.log.segment.bytes": "4096",
    "metadata.max.retention.bytes": "9000",
}
"""A snapshot every 28 records; the log start moves a minute after a controller was started."""


@pytest.fixture(scope="session")
def observed(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[KafkaQuorum, KafkaObserver]]:
    """The observer is there first: it has the first record before Kafka has made a snapshot."""
    quorum = KafkaQuorum(tmp_path_factory.mktemp("kafka"), extra=QUICK_SNAPSHOTS)
    folder = tmp_path_factory.mktemp("first") / "node"
    observer = KafkaObserver(folder, quorum.bootstrap, node_id=90)
    quorum.format()
    try:
        observer.launch()
        quorum.start()
        # Kafka's controllers answer clients once the first records are committed.
        asked = ("describe", "--status", "--bootstrap-server", quorum.bootstrap)
        wait_for(lambda: quorumctl(*asked).code == 0, "the controllers to answer")
        observer.wait_ready()
        yield quorum, observer
    finally:
        observer.cluster.kill_all()
        quorum.kill()


@pytest.fixture(scope="session")
def kafka(observed: tuple[KafkaQuorum, KafkaObserver]) -> KafkaQuorum:
    return observed[0]


@pytest.fixture(scope="session")
def first(observed: tuple[KafkaQuorum, KafkaObserver]) -> KafkaObserver:
    """Observes from the first record on, through all that the tests do."""
    return observed[1]
