"""A quorum that is newer than this version is observed all the same, and what is new is named.

A quorumd quorum stands for a later Kafka: its clients write what no Kafka of today does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumd.server.model import kafka_drift
from tests.support.commands import quorumctl
from tests.support.kafka_controller import CLUSTER_ID
from tests.support.kafka_jars import requires_java
from tests.support.kafka_observer import KafkaObserver
from tests.support.kafka_quorum import KafkaQuorum
from tests.support.live_cluster import Cluster

NAME = "record: type 99"


@pytest.mark.timeout(120)
def test_an_observer_names_the_records_that_it_does_not_know_and_keeps_them(tmp_path: Path) -> None:
    later = Cluster(tmp_path / "later", size=1)
    later.format(cluster_id=CLUSTER_ID)
    observer = KafkaObserver(tmp_path / "observer", later.bootstrap, node_id=9)
    try:
        later.start()
        later.wait_ready()
        observer.start()
        assert NAME not in observer.status()["unknown"]
        (tmp_path / "record").write_bytes(b"\x01\x63\x00and more\n")
        done = quorumctl(
            *("append", "--file", tmp_path / "record", "--bootstrap-server", later.bootstrap)
        )
        assert done.code == 0, done.text
        observer.wait_committed(later.status(1)["high_watermark"])
        assert observer.status()["unknown"] == {NAME: 1}
        observer.cluster.wait_logged(1, f'what="{NAME}"')
        assert observer.metric(f'quorumd_unknown_total{{what="{NAME}"}}') == 1
        assert observer.status()["problems"] == []

        # A request of a later version closes its connection, as with Kafka, and is named.
        assert observer.ask_unknown(52, 9) is None
        (named,) = set(observer.status()["unknown"]) - {NAME}
        assert named == "request: Vote has versions 0 to 2, not 9"

        observer.kill()
        observer.start()
        later.stop(1)
        observer.stop()
        assert observer.cluster.log_bytes(1) == later.log_bytes(1)
    finally:
        later.kill_all()
        observer.cluster.kill_all()


@requires_java
@pytest.mark.timeout(120)
def test_a_witness_that_could_not_promise_it_says_so_and_is_not_added(
    kafka: KafkaQuorum, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that knows metadata.version up to 7 alone stands for one beside a later Kafka."""
    witness = KafkaObserver(
        tmp_path / "witness", kafka.bootstrap, node_id=92, settings={"quorum.witness": "true"}
    )
    add = ("add-voter", "--replica-id", 92, "--endpoint", f"CONTROLLER://{witness.address}")
    at = ("--bootstrap-server", kafka.bootstrap)
    older = {**kafka_drift.KAFKA_FEATURES, kafka_drift.METADATA_VERSION: (7, 7)}
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Cluster, "constants", {f"{kafka_drift.__name__}.KAFKA_FEATURES": older})
            witness.start()
        [obstacle] = witness.status()["warnings"]
        assert "this version knows 7 to 7: upgrade quorumd" in obstacle
        assert witness.metric("quorumd_witness_obstacles") == 1
        witness.cluster.wait_logged(1, "knows 7 to 7")
        done = quorumctl(*add, *at)
        assert done.code, done.text
        assert "doesn't support the finalized version" in done.text
        witness.stop()

        witness.start()
        assert witness.status()["warnings"] == []
        done = quorumctl(*add, *at)
        assert done.code == 0, done.text
        done = quorumctl("remove-voter", "--replica-id", 92, *at)
        assert done.code == 0, done.text
    finally:
        witness.cluster.kill_all()
