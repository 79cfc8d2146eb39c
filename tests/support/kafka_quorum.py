"""A real quorum of Apache Kafka controllers on the loopback, and a broker of it, for tests.

Nothing survives the test process: the kernel kills the nodes with it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from quorumd.raft.types import uuid_to_text
from quorumd.storage.layout import LOG_SUFFIX
from quorumd.storage.meta_properties import random_storage_id
from quorumd.storage.reader import find_files
from quorumd.wire.messages.describe_quorum import DescribeQuorumResponsePartition
from tests.support.kafka_controller import CLUSTER_ID, KafkaController
from tests.support.live_cluster import describe_quorum_at

WAIT_S = 60.0
COPY_S = 20.0
POLL_S = 0.05

T = TypeVar("T")


class KafkaQuorum:
    """Controllers by id from 1; `extra` are further lines of their properties files."""

    def __init__(
        self, folder: Path, *, size: int = 3, extra: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.controllers = {
            node: KafkaController(folder / f"kafka-{node}", node_id=node, extra=extra)
            for node in range(1, size + 1)
        }
        for controller in self.controllers.values():
            controller.bootstrap_servers = self.bootstrap
        self.directory_ids = {node: uuid_to_text(random_storage_id()) for node in self.controllers}

    @property
    def bootstrap(self) -> str:
        """Every controller's address, as --bootstrap-controller takes them."""
        return ",".join(each.address for each in self.controllers.values())

    @property
    def voters(self) -> str:
        """The controllers as `format --initial-controllers` takes them."""
        return ",".join(
            f"{node}@{each.address}:{self.directory_ids[node]}"
            for node, each in self.controllers.items()
        )

    def format(self, *more: str, is_static: bool = False) -> None:
        """All of them as one new quorum, with `more` arguments of the tool.

        `is_static`: controller.quorum.voters of `extra` names the voters, and the log does not.

        The tool runs once: what it writes differs by two lines of one file, and a JVM takes seconds.
        """
        first, *others = self.controllers.values()
        first.format(*more, voters="" if is_static else self.voters)
        for each in others:
            self.copy_format(first.data_folder, each)

    def copy_format(self, formatted: Path, controller: KafkaController) -> None:
        """Prepares a controller's folder as a copy of one that is freshly formatted."""
        controller.write_properties()
        shutil.copytree(formatted, controller.data_folder)
        meta = controller.data_folder / "meta.properties"
        lines = [
            line
            for line in meta.read_text().splitlines()
            if not line.startswith(("node.id=", "directory.id="))
        ]
        directory_id = self.directory_ids[controller.node_id]
        lines += [f"node.id={controller.node_id}", f"directory.id={directory_id}"]
        meta.write_text("\n".join(lines) + "\n")

    def new_broker(self, node_id: int) -> KafkaController:
        """A broker of this quorum, ready to be started; its `address` is that of its clients."""
        broker = KafkaController(self.folder / f"broker-{node_id}", node_id=node_id)
        broker.extra = {
            "process.roles": "broker",
            "listeners": f"PLAINTEXT://{broker.address}",
            "advertised.listeners": f"PLAINTEXT://{broker.address}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "offsets.topic.replication.factor": "1",
        }
        broker.bootstrap_servers = self.bootstrap
        broker.write_properties()
        broker.data_folder.mkdir()
        meta = {
            "version": "1",
            "cluster.id": CLUSTER_ID,
            "node.id": str(node_id),
            "directory.id": uuid_to_text(random_storage_id()),
        }
        lines = (f"{key}={value}\n" for key, value in meta.items())
        (broker.data_folder / "meta.properties").write_text("".join(lines))
        return broker

    def start(self, *nodes: int) -> None:
        """Start these (none named: all) and return when their ports are open."""
        chosen = [self.controllers[node] for node in nodes or self.controllers]
        for each in chosen:
            each.launch()
        for each in chosen:
            each.wait_open()

    def kill(self, *nodes: int) -> None:
        """SIGKILL to these; none named: all."""
        for node in nodes or self.controllers:
            self.controllers[node].kill()

    def wipe(self, node: int) -> None:
        """The disk of a controller that does not run is lost."""
        shutil.rmtree(self.controllers[node].data_folder)

    def describe(self) -> DescribeQuorumResponsePartition | None:
        """What the leader says of the quorum; None if nobody leads."""
        for node, controller in self.controllers.items():
            if controller.is_running:
                answer = describe_quorum_at(controller.port)
                if answer is not None and not answer.error_code and answer.leader_id == node:
                    return answer
        return None

    def wait_leader(self, *, other_than: int | None = None) -> int:
        """The leader, as soon as there is one that has committed (and it is another one)."""

        def found() -> int | None:
            seen = self.describe()
            is_new = seen is not None and seen.leader_id != other_than and seen.high_watermark > 0
            return seen.leader_id if seen is not None and is_new else None

        return self._wait_for(found, "a Kafka leader")

    def wait_committed(self) -> int:
        """The high watermark, as soon as there is a leader that tells one."""

        def found() -> int | None:
            seen = self.describe()
            return None if seen is None else seen.high_watermark

        return self._wait_for(found, "a high watermark")

    def _wait_for(self, look: Callable[[], T | None], what: str) -> T:
        try:
            return wait_for(look, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tail_of_logs()}") from None

    def tail_of_logs(self) -> str:
        """Which controllers run, what each says of the quorum, and the newest lines of its log."""
        told = []
        for node, each in self.controllers.items():
            said = each.output.read_text(errors="replace") if each.output.exists() else ""
            state = "runs" if each.is_running else "has ended"
            answer = describe_quorum_at(each.port, timeout_s=WAIT_S) if each.is_running else None
            told.append(f"-- Kafka {node} {state}, describes {answer}\n{said[-3000:]}")
        return "\n".join(told)


def wait_for(look: Callable[[], T | None], what: str, timeout_s: float = WAIT_S) -> T:
    """What `look` finds as soon as it is truthy."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s} s for {what}")
        time.sleep(POLL_S)
    return found


def batches_of(log_folder: Path) -> dict[int, bytes]:
    """The whole batches of a directory's segments, by base offset, whoever has written them."""
    found = {}
    for file in find_files(log_folder):
        if file.path.suffix == LOG_SUFFIX:
            for batch in file.batches():
                assert batch.crc_is_valid, f"{file.path} at byte {batch.position}"
                found[batch.header.base_offset] = batch.data
    return found


def wait_same_batches(one: Path, other: Path, end_offset: int) -> int:
    """Return as soon as both directories hold the same bytes below `end_offset`, from the later start on.

    That one is returned. A node that was started a moment ago may have to catch up, and to cut, first.
    """

    def start() -> int | None:
        first, second = batches_of(one), batches_of(other)
        if not first or not second:  # a snapshot was copied, and nothing after it yet
            return None
        at = max(min(first), min(second))
        in_range = [
            {offset: data for offset, data in log.items() if at <= offset < end_offset}
            for log in (first, second)
        ]
        # A batch's last offset is its base offset and the delta at byte 23.
        ends = [base + int.from_bytes(data[23:27], "big") + 1 for base, data in in_range[0].items()]
        is_whole = max(ends, default=0) >= end_offset
        return at + 1 if is_whole and in_range[0] == in_range[1] else None

    return wait_for(start, f"the same bytes in {one} and {other}", COPY_S) - 1
