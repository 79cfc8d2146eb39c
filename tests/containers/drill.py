"""The drill of `make test-containers`: the image and the compose files, run and mistreated.

With --pipeline the pipeline's image, too, which takes minutes and a gigabyte.
Prints one line per step with what was measured. Exit codes: 0 all held, 1 something did not, 77 no
containers can be run on this machine (nothing was tested).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from quorumd.version import VERSION
from tests.containers.engine import BASE, Engine, Failed, NoEngine, base_image, engine
from tests.containers.fleet import Fleet
from tests.containers.other_files import beside_kafka, with_tls
from tests.containers.prometheus_image import prometheus_image
from tests.deploy.prometheus import CannotFetch, Server
from tests.support.live_cluster import TOPIC
from tests.support.load import Load

EXIT_NOTHING_TESTED = 77
MAX_IMAGE_BYTES = 220_000_000
USER = "10001:10001"
WAIT_S = 60.0
BUILD_TIMEOUT_S = 1200
IMAGE = "quorumd:drill-{revision}"
PIPELINE_IMAGE = "quorumd-pipeline:drill"
PIPELINE_WAIT_S = 300.0
TABLES_END = """
from pathlib import Path
from quorumd.pipeline.tables.manifests import CHAINS, MARKER, newest
folder = Path("/tables")
found = newest(folder, CHAINS[0]) if (folder / MARKER).exists() else None
print(found.end_offset if found else 0)
"""


def main() -> int:
    """Run everything; the exit code."""
    # As Ctrl-C does: all that was started is taken down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog="python -m tests.containers.drill")
    parser.add_argument("--pipeline", action="store_true", help="build and try its image, too")
    has_pipeline = parser.parse_args().pipeline
    try:
        with engine() as docker, tempfile.TemporaryDirectory(prefix="quorumd-drill-") as folder:
            return _run(docker, Path(folder), has_pipeline)
    except NoEngine as error:
        print(f"make test-containers: nothing was tested: {error}", file=sys.stderr)
        return EXIT_NOTHING_TESTED
    except Failed as error:
        print(f"make test-containers: {error}", file=sys.stderr)
        return 1


def _run(docker: Engine, folder: Path, has_pipeline: bool) -> int:
    base = base_image(docker)
    drill = Drill(docker, Fleet(docker, folder), base)
    began = time.monotonic()
    try:
        drill.fleet.take_down()
        drill.run(has_pipeline)
    except (AssertionError, Failed) as error:
        print(f"FAILED: {error}\n{drill.fleet.logs()}", file=sys.stderr, flush=True)
        return 1
    finally:
        drill.fleet.take_down()
    print(f"all held; {time.monotonic() - began:.0f} s", flush=True)
    return 0


class Drill:
    """The steps, in their order; each raises AssertionError or Failed."""

    def __init__(self, docker: Engine, fleet: Fleet, base: str) -> None:
        self.fleet = fleet
        self._docker = docker
        self._base = base
        self._has_prometheus = True

    def run(self, has_pipeline: bool) -> None:
        self._step("image", self.image)
        self._step("first day", self.first_day)
        self._step("hardening", self.hardening)
        self._step("write and read", self.write_and_read)
        self._step("monitoring", self.monitoring)
        if has_pipeline:
            self._step("pipeline", self.pipeline)
        with Load(self.fleet, writers=2) as load:
            load.wait_progress()
            self._step("kill the leader", partial(self.kill, load))
            self._step("stop the leader", partial(self.stop, load))
            self._step("partition the leader", partial(self.partition, load))
            self._step("replace a volume", partial(self.replace_volume, load))
            self._step("roll to another image", partial(self.roll, load))
        self._step("nothing is lost", partial(self.nothing_is_lost, load))
        self.fleet.take_down()
        folder, changes = self.fleet.folder, self.fleet.changes
        images = {name: changes[name] for name in changes if name.endswith("_IMAGE")}
        secure = partial(with_tls, self._docker, folder / "secure", images, self._has_prometheus)
        self._step("with TLS", secure)
        self._step("beside Kafka", partial(beside_kafka, self._docker, folder / "beside", images))

    def _step(self, name: str, step: Callable[[], str]) -> None:
        began = time.monotonic()
        found = step()
        print(f"{name:22} {time.monotonic() - began:5.1f} s  {found}", flush=True)

    # -- steps

    def image(self) -> str:
        self.fleet.edit(
            QUORUMD_IMAGE=IMAGE.format(revision="first"),
            QUORUMD_BASE=self._base,
            QUORUMD_REVISION="first",
        )
        found = self._build(IMAGE.format(revision="first"), "node", "first")
        assert found["Size"] < MAX_IMAGE_BYTES, f"the image has {found['Size']} bytes"
        assert found["Config"]["User"] == USER
        labels = found["Config"]["Labels"]
        assert labels["org.opencontainers.image.revision"] == "first", labels
        assert labels["org.opencontainers.image.version"] != "unknown", labels
        asked = (
            "run",
            "--rm",
            "--entrypoint",
            "quorumd",
            IMAGE.format(revision="first"),
            "--version",
        )
        assert "(compiled, commit first)" in (said := self._docker.docker(*asked)), said
        return f"{found['Size'] / 1e6:.0f} MB on {self._base}"

    def first_day(self) -> str:
        self.fleet.first_day()
        self.fleet.wait_ready(*self.fleet.ids, timeout_s=60)
        for node in self.fleet.ids:
            self._wait(partial(self.fleet.is_healthy, node), f"node {node} healthy")
        return f"node {self.fleet.wait_leader()} leads, all are healthy"

    def hardening(self) -> str:
        for node in self.fleet.ids:
            host = self.fleet.inspect(node)["HostConfig"]
            assert host["ReadonlyRootfs"]
            assert host["Memory"] > 0
            assert host["NanoCpus"] > 0
            assert self.fleet.inside(node, "id", "-u") == (0, "10001\n")
            for place in ("/", "/tmp", "/opt/quorumd", "/etc/quorumd"):
                code, said = self.fleet.inside(node, "touch", f"{place}/file")
                assert code, f"node {node} writes to {place}"
                assert "Read-only" in said, said
            _, status = self.fleet.inside(node, "cat", "/proc/1/status")
            lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            assert lines["Name"] == "quorumd", f"process 1 is {lines['Name']}"
            assert int(lines["CapEff"], 16) == int(lines["CapBnd"], 16) == 0, status
            assert lines["NoNewPrivs"] == "1", status
        return "read-only root, user 10001, no capabilities, process 1 is quorumd"

    def write_and_read(self) -> str:
        offset = self._quorumctl("put", "color", "blue").strip()
        assert self._quorumctl("get", "color", "--min-offset", offset) == "blue\n"
        voters = json.loads(self._quorumctl("describe", "-o", "json"))["voters"]
        assert [voter["replica_id"] for voter in voters] == list(self.fleet.ids)
        value = b"from a Kafka client"
        settings = {"bootstrap.servers": self.fleet.bootstrap}
        producer = Producer({**settings, "acks": "all"})
        producer.produce(TOPIC, value, partition=0)
        assert producer.flush(WAIT_S) == 0, "the producer had no acknowledgement"
        consumer = Consumer({**settings, "group.id": "none", "enable.auto.commit": False})
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        values = []
        deadline = time.monotonic() + WAIT_S
        while value not in values and time.monotonic() < deadline:
            if (message := consumer.poll(1.0)) is not None and message.error() is None:
                values.append(message.value())
        consumer.close()
        assert value in values, values
        with urllib.request.urlopen(self.fleet.http_url(1, "/"), timeout=WAIT_S) as page:
            assert page.status == 200
        return "quorumctl and a Kafka client from this machine, over the second listener"

    def pipeline(self) -> str:
        """The tables get what is in the log, in a container as the compose file has it."""
        found = self._build(PIPELINE_IMAGE, "pipeline", "first")
        self.fleet.edit(PIPELINE_IMAGE=PIPELINE_IMAGE)
        began = time.monotonic()
        self.fleet.compose("--profile", "spark", "up", "-d", "--no-build", "pipeline")
        for value in ("red", "green"):
            self._wait_tables(int(self._quorumctl("put", "color", value)))
        self._wait(partial(self.fleet.service_is_healthy, "pipeline"), "the pipeline healthy")
        took = time.monotonic() - began
        self.fleet.compose("--profile", "spark", "stop", "pipeline")
        return f"{found['Size'] / 1e6:.0f} MB; tables up to offset {self._tables_end()} in {took:.0f} s"

    def kill(self, load: Load) -> str:
        leader = self.fleet.wait_leader()
        took = self._until_progress(load, leader, self.fleet.kill_container)
        self.fleet.start_container(leader)
        self.fleet.wait_ready(leader)
        return f"records were acknowledged again within {took:.1f} s"

    def stop(self, load: Load) -> str:
        leader = self.fleet.wait_leader()
        codes = []
        took = self._until_progress(
            load, leader, lambda node: codes.append(self.fleet.stop_container(node))
        )
        assert codes == [0], f"SIGTERM ended node {leader} with {codes}"
        self.fleet.start_container(leader)
        self.fleet.wait_ready(leader)
        return f"exit code 0; docker stop and records again within {took:.1f} s"

    def partition(self, load: Load) -> str:
        leader = self.fleet.wait_leader()
        took = self._until_progress(load, leader, self.fleet.partition)
        assert self.fleet.inspect(leader)["State"]["Running"], "a partition ended the node"
        self._wait(partial(self.fleet.is_healthy, leader), "the lonely node live")
        self.fleet.heal(leader)
        self.fleet.wait_ready(leader, timeout_s=WAIT_S)
        return f"records were acknowledged again within {took:.1f} s; the node came back"

    def replace_volume(self, load: Load) -> str:
        node = 3
        before = self.fleet.status(node)["storage_id"]
        self.fleet.lose_volume(node)
        self.fleet.up(node)
        self._wait(lambda: self._role(node) == "observer", f"node {node} an observer")
        after = self.fleet.status(node)["storage_id"]
        assert after != before
        load.wait_progress()
        assert self._voters()[node] == before, "a replaced volume votes by itself"
        self._quorumctl("replace-voter", str(node))
        self._wait(lambda: self._voters()[node] == after, f"node {node} a voter again")
        self.fleet.wait_ready(node)
        return f"node {node} came back as an observer, replace-voter gave it the vote"

    def roll(self, load: Load) -> str:
        image = IMAGE.format(revision="second")
        self._build(image, "node", "second")
        self.fleet.edit(QUORUMD_IMAGE=image, QUORUMD_REVISION="second")
        acknowledged, failures = len(load.acknowledged), load.failures
        leader = self.fleet.wait_leader()
        for node in (*(node for node in self.fleet.ids if node != leader), leader):
            self.fleet.up(node)
            self.fleet.wait_ready(node, timeout_s=WAIT_S)
            self._wait(partial(self.fleet.is_healthy, node), f"node {node} healthy")
            self._wait_caught_up()
            assert self.fleet.inspect(node)["Config"]["Image"] == image
        load.wait_progress()
        return (
            f"{len(load.acknowledged) - acknowledged} records acknowledged meanwhile, "
            f"{load.failures - failures} tries without an answer or refused"
        )

    def nothing_is_lost(self, load: Load) -> str:
        self.fleet.wait_converged()
        for node in self.fleet.ids:
            assert self.fleet.stop_container(node) == 0
        self.fleet.copy_disks()
        load.assert_nothing_lost(*self.fleet.ids)
        return f"{len(load.acknowledged)} acknowledged records are on all three volumes, once"

    def monitoring(self) -> str:
        """Prometheus and Grafana where their images can be had, else Debian's Prometheus as an image."""
        names = ["prometheus", "grafana"] if self._base == BASE else ["prometheus"]
        if self._base != BASE:
            try:
                self.fleet.edit(PROMETHEUS_IMAGE=prometheus_image(self._docker, self._base))
            except CannotFetch as error:
                self._has_prometheus = False
                return f"NOT TESTED: no image can be pulled here, and {error}"
        self.fleet.compose("up", "-d", "--no-build", *names)
        for name in names:
            self._wait(partial(self.fleet.service_is_healthy, name), f"{name} healthy")
        server = Server(self.fleet.prometheus_port)
        server.wait_for(
            lambda: len(server.query("raft_manager_current_leader >= 0")) == len(self.fleet.ids),
            "Prometheus to know every node's leader",
            WAIT_S,
        )
        (group,) = server.get("rules")["groups"]
        found = f"Prometheus scrapes all nodes and has {len(group['rules'])} alerts"
        if "grafana" in names:
            return f"{found}, Grafana is healthy"
        return f"{found}; Debian's program, NOT TESTED: the images of Prometheus and Grafana"

    # -- helpers

    def _build(self, image: str, target: str, revision: str) -> dict[str, Any]:
        arguments = {"BASE": self._base, "VERSION": VERSION, "REVISION": revision}
        command = ["build", "--network", "host", "--target", target, "-t", image]
        for name, value in arguments.items():
            command += ["--build-arg", f"{name}={value}"]
        self._docker.run("docker", *command, ".", timeout_s=BUILD_TIMEOUT_S)
        found: dict[str, Any] = json.loads(self._docker.docker("image", "inspect", image))[0]
        return found

    def _until_progress(self, load: Load, leader: int, act: Callable[[int], None]) -> float:
        """Seconds from the act against the leader until another one has committed new records."""
        began = time.monotonic()
        act(leader)
        self.fleet.wait_leader(other_than=leader)
        load.wait_progress(1)
        took = time.monotonic() - began
        load.wait_progress()
        return took

    def _quorumctl(self, *arguments: str) -> str:
        program = Path(sys.executable).with_name("quorumctl")
        done = subprocess.run(
            [program, *arguments],
            env={**os.environ, "QUORUM_BOOTSTRAP_SERVERS": self.fleet.bootstrap},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert not done.returncode, f"quorumctl {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def _role(self, node: int) -> str:
        return str(self.fleet.status(node)["role"])

    def _voters(self) -> dict[int, str]:
        """Storage ids of the voters, by id."""
        found = self.fleet.status(self.fleet.wait_leader())["voters"]
        return {voter["id"]: voter["storage_id"] for voter in found}

    def _wait_caught_up(self) -> None:
        """Return when all voters have what is committed now."""
        now = self.fleet.describe(self.fleet.wait_leader())
        assert now is not None, "the leader does not respond"

        def have_it() -> bool:
            found = self.fleet.describe(self.fleet.wait_leader())
            return found is not None and all(
                voter.log_end_offset >= now.high_watermark for voter in found.current_voters
            )

        self._wait(have_it, "all voters caught up")

    def _wait_tables(self, offset: int) -> None:
        self.fleet.wait_for(lambda: self._tables_end() > offset, "the tables", PIPELINE_WAIT_S)

    def _tables_end(self) -> int:
        """The first offset that is not in the pipeline's tables."""
        # A container of its own: what made them may have been stopped.
        command = [
            "run",
            "--rm",
            "--no-deps",
            "--entrypoint",
            "python3",
            "pipeline",
            "-c",
            TABLES_END,
        ]
        return int(self.fleet.compose("--profile", "spark", *command) or 0)

    def _wait(self, look: Callable[[], bool], what: str) -> None:
        self.fleet.wait_for(look, what, WAIT_S)


if __name__ == "__main__":
    sys.exit(main())
