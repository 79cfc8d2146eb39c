"""A quorum that is newer than this version is observed all the same, and what is new is named.

A quorumd quorum stands for a later Kafka: its clients write what no Kafka of today does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import quorumctl
from tests.support.kafka_controller import CLUSTER_ID
from tests.support.kafka_observer import KafkaObserver
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
