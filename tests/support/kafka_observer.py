"""A quorumd node that observes a real Kafka quorum, for tests."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.kafka_controller import CLUSTER_ID
from tests.support.live_cluster import Cluster, Ended

NODE = 1
"""What `Cluster` calls its only node; the quorum knows it by the id that the test gives."""


class KafkaObserver:
    """Formatted with --kafka-log under an id that no Kafka node has; starts and stops as a process."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        *,
        node_id: int,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.node_id = node_id
        self.cluster = Cluster(
            folder,
            size=0,
            observers=1,
            settings={
                "node.id": node_id,
                "quorum.bootstrap.servers": bootstrap,
                **(settings or {}),
            },
        )
        folder.mkdir(parents=True)
        self.cluster.write_config(NODE)
        self.cluster.format_one(NODE, "--kafka-log", "--cluster-id", CLUSTER_ID)

    @property
    def storage_dir(self) -> Path:
        return self.cluster.storage_dir(NODE)

    @property
    def log_folder(self) -> Path:
        return self.cluster.log_folder(NODE)

    @property
    def address(self) -> str:
        return self.cluster.address(NODE)

    def launch(self) -> None:
        """Starts the process, without waiting for anything."""
        self.cluster.start(NODE)

    def wait_ready(self) -> None:
        """Returns when it has contact with a leader."""
        self.cluster.wait_ready(NODE)

    def start(self) -> None:
        """Returns when it is ready."""
        self.launch()
        self.wait_ready()

    def stop(self) -> Ended:
        return self.cluster.stop(NODE)

    def kill(self) -> Ended:
        return self.cluster.kill(NODE)

    def status(self) -> dict[str, Any]:
        return self.cluster.status(NODE)

    @property
    def output(self) -> str:
        """Everything that it has logged."""
        return self.cluster.output(NODE)

    def ask_unknown(self, api_key: int, version: int) -> bytes | None:
        """What it answers to a request of this key and version; None if it closes the connection."""
        frame = struct.pack(">hhih", api_key, version, 1, -1)
        with socket.create_connection(("127.0.0.1", self.cluster.port(NODE)), 5) as connection:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            return connection.recv(100) or None

    def metric(self, name: str) -> float:
        """The value of a metric, named as in the page."""
        return self.cluster.metric(NODE, name)

    def wait_committed(self, offset: int) -> dict[str, Any]:
        """Its status, as soon as it knows everything below `offset` to be committed and has it."""

        def reached() -> dict[str, Any] | None:
            status = self.status()
            return status if status["high_watermark"] >= offset else None

        return self.cluster.wait_for(reached, f"offset {offset} at the observer")


@contextmanager
def observing(
    folder: Path, bootstrap: str, *, node_id: int, settings: Mapping[str, object] | None = None
) -> Iterator[KafkaObserver]:
    """A started observer; whatever is left of it at the end is killed."""
    observer = KafkaObserver(folder, bootstrap, node_id=node_id, settings=settings)
    try:
        observer.start()
        yield observer
    finally:
        observer.cluster.kill_all()
