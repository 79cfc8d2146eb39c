"""The quorum of deploy/docker-compose.yml, with ports of its own, for tests from outside.

A `Cluster` whose nodes are containers: what asks a node asks its published ports.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.containers.engine import ROOT, Engine
from tests.support.live_cluster import Cluster
from tests.support.ports import free_port

DEPLOY = ROOT / "deploy"
COMPOSE_FILE = "docker-compose.yml"
EXAMPLE = DEPLOY / ".env.example"
PROJECT = "quorumd-drill"
NETWORK = f"{PROJECT}_quorum"


class Fleet(Cluster):
    """Three controllers; nothing runs before `first_day`. Cut off with `partition`, not `suspend`."""

    def __init__(
        self, docker: Engine, folder: Path, files: Sequence[Path] = (DEPLOY / COMPOSE_FILE,)
    ) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._docker = docker
        self._files = files
        self._cut_off: set[int] = set()
        self._environment = folder / "environment"
        self.prometheus_port = free_port()
        self.changes: dict[str, object] = {
            **{f"KAFKA_PORT_{node}": self._ports[node] for node in self.ids},
            **{f"HTTP_PORT_{node}": self._http_ports[node] for node in self.ids},
            "PROMETHEUS_PORT": self.prometheus_port,
        }
        self.edit()

    def edit(self, **changes: object) -> None:
        """Change variables of the file that a user would edit, which begins as the example, or add some."""
        self.changes |= changes
        lines = EXAMPLE.read_text().splitlines()
        kept = [line for line in lines if line.partition("=")[0] not in self.changes]
        lines = [*kept, *(f"{name}={value}" for name, value in self.changes.items())]
        self._environment.write_text("\n".join(lines) + "\n")

    # -- containers

    def compose(self, *arguments: str) -> str:
        """What docker compose prints. Raises Failed."""
        files = [part for path in self._files for part in ("-f", str(path))]
        options = (*files, "--env-file", str(self._environment), "-p", PROJECT)
        return self._docker.run(*self._docker.compose_command, *options, *arguments).stdout.strip()

    def container(self, node: int) -> str:
        """The id of the node's container, running or not; "" if it has none."""
        filters = (
            f"label=com.docker.compose.project={PROJECT}",
            f"label=com.docker.compose.service={service(node)}",
        )
        return self._docker.docker("ps", "-aq", *(f"--filter={one}" for one in filters))

    def inspect(self, node: int) -> dict[str, Any]:
        """What the engine knows of the node's container."""
        found: dict[str, Any] = json.loads(self._docker.docker("inspect", self.container(node)))[0]
        return found

    def is_healthy(self, node: int) -> bool:
        """What its healthcheck says."""
        return bool(self.inspect(node)["State"]["Health"]["Status"] == "healthy")

    def inside(self, node: int, *command: str) -> tuple[int, str]:
        """Exit code and output of a command in the node's container."""
        done = self._docker.run("docker", "exec", self.container(node), *command, is_checked=False)
        return done.returncode, done.stdout + done.stderr

    def first_day(self) -> None:
        """Format all three as the first voters, and start them."""
        for node in self.ids:
            variable = ("-e", "QUORUMD_FORMAT=bootstrap")
            self.compose("run", "--rm", "--no-deps", *variable, service(node))
        self.up(*self.ids)

    def up(self, *nodes: int) -> None:
        """Start these nodes, in containers made anew if their image or settings have changed."""
        self.compose("up", "-d", "--no-build", "--no-deps", *map(service, nodes))

    def kill_container(self, node: int) -> None:
        """SIGKILL."""
        self._docker.docker("kill", self.container(node))

    def stop_container(self, node: int) -> int:
        """SIGTERM, and wait; the exit code."""
        self._docker.docker("stop", self.container(node))
        return int(self.inspect(node)["State"]["ExitCode"])

    def start_container(self, node: int) -> None:
        self._docker.docker("start", self.container(node))

    def partition(self, node: int) -> None:
        """Take its network away."""
        self._docker.docker("network", "disconnect", NETWORK, self.container(node))
        self._cut_off.add(node)

    def heal(self, node: int) -> None:
        """Give it back."""
        alias = ("--alias", service(node))
        self._docker.docker("network", "connect", *alias, NETWORK, self.container(node))
        self._cut_off.discard(node)

    def lose_volume(self, node: int) -> None:
        """The node, its container and its volume are gone."""
        self._docker.docker("rm", "--force", self.container(node))
        self._docker.docker("volume", "rm", f"{PROJECT}_data-{node}")

    def service_is_healthy(self, name: str) -> bool:
        """What the healthcheck of a service's container says."""
        container = self.compose("ps", "-q", name)
        state = self._docker.docker("inspect", "--format", "{{.State.Health.Status}}", container)
        return state == "healthy"

    def take_down(self) -> None:
        """Everything of this project goes, the volumes too."""
        self.compose("--profile", "spark", "down", "--volumes", "--remove-orphans")

    def copy_disks(self) -> None:
        """The directories of all nodes as they are now, for `records`. The nodes have to be stopped."""
        for node in self.ids:
            target = self.storage_dir(node)
            shutil.rmtree(target, ignore_errors=True)
            self._docker.docker("cp", f"{self.container(node)}:/var/lib/quorumd", str(target))

    # -- a cluster

    def running(self) -> tuple[int, ...]:
        return tuple(
            node
            for node in self.ids
            if node not in self._cut_off
            and self.container(node)
            and self.inspect(node)["State"]["Running"]
        )

    def logs(self) -> str:
        return self.compose("logs", "--no-color", "--tail=40")


def service(node: int) -> str:
    """The node's name in the compose file."""
    return f"quorumd-{node}"
