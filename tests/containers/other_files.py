"""The compose files beside docker-compose.yml, run by an engine as the commands in their heads say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.containers.engine import Engine
from tests.containers.fleet import COMPOSE_FILE, DEPLOY, Fleet
from tests.deploy.prometheus import Server

SECURE_FILE = "docker-compose.secure.yml"
KAFKA_FILE = "docker-compose.kafka.yml"
KAFKAS_CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"
WAIT_S = 60.0


def with_tls(
    docker: Engine, folder: Path, images: Mapping[str, object], has_prometheus: bool
) -> str:
    """Three nodes and Prometheus, with certificates; `images` are variables of the user's file."""
    deploy = _copied(folder)
    _make_certificates(folder)
    fleet = Fleet(docker, folder, [deploy / COMPOSE_FILE, deploy / SECURE_FILE])
    fleet.edit(**images)
    try:
        fleet.first_day()
        for node in fleet.ids:
            fleet.wait_for(partial(fleet.is_healthy, node), f"node {node} healthy", WAIT_S)
        client = ("--command-config", str(deploy / "certs" / "alice.properties"))
        offset = _quorumctl(fleet, "put", "color", "blue", *client).stdout.strip()
        read = _quorumctl(fleet, "get", "color", "--min-offset", offset, *client)
        assert read.stdout == "blue\n", read
        refused = _quorumctl(fleet, "describe", is_checked=False)
        assert refused.returncode, "a client without a certificate is served"
        assert "security.protocol" in refused.stderr, refused.stderr
        if has_prometheus:
            fleet.compose("up", "-d", "--no-build", "prometheus")
            server = Server(fleet.prometheus_port)
            fleet.wait_for(
                lambda: len(server.query("up == 1")) == len(fleet.ids), "all nodes scraped", WAIT_S
            )
    except AssertionError as error:
        raise AssertionError(f"{error}\n{fleet.logs()}") from error
    finally:
        fleet.take_down()
    scraped = "Prometheus scrapes them" if has_prometheus else "NOT TESTED: Prometheus"
    return f"nodes are healthy, serve a certificate's holder and refuse others; {scraped}"


def beside_kafka(docker: Engine, folder: Path, images: Mapping[str, object]) -> str:
    """An observer and a witness, whose controllers are not there: formatted, running, live."""
    for profile in ("observer", "witness"):
        fleet = Fleet(docker, folder / profile, [_copied(folder / profile) / KAFKA_FILE])
        fleet.edit(
            **images,
            KAFKA_BOOTSTRAP_SERVERS="controller1:9093",
            KAFKA_CLUSTER_ID=KAFKAS_CLUSTER_ID,
            ADVERTISED_HOST=f"{profile}1",
        )
        command = ("format", "--kafka-log", "--cluster-id", KAFKAS_CLUSTER_ID)
        try:
            fleet.compose("--profile", profile, "run", "--rm", profile, *command)
            fleet.compose("--profile", profile, "up", "-d", "--no-build")
            fleet.wait_for(partial(fleet.service_is_healthy, profile), profile, WAIT_S)
            status = fleet.status(1)
            assert (status["node_id"], status["role"]) == (9001, "observer"), status
        except AssertionError as error:
            raise AssertionError(f"{error}\n{fleet.logs()}") from error
        finally:
            fleet.compose("--profile", profile, "down", "--volumes")
    return "observer and witness are formatted, run and are healthy; NOT TESTED: Kafka beside them"


def _copied(folder: Path) -> Path:
    """The files of deploy/, as a user has them, without what may have been made there."""
    target = folder / "deploy"
    shutil.copytree(DEPLOY, target, ignore=shutil.ignore_patterns("certs", ".env"))
    return target


def _make_certificates(folder: Path) -> None:
    """The commands in the head of the file, as root."""
    head = (DEPLOY / SECURE_FILE).read_text().partition("\n#     cd deploy\n")[0]
    commands = re.findall(r"^# {5}(.+)$", head, re.MULTILINE)
    assert any("chown" in command for command in commands), commands
    script = "\n".join(commands).replace("sudo ", "")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path}
    subprocess.run(["sh", "-ec", script], cwd=folder, env=environ, check=True, capture_output=True)


def _quorumctl(
    fleet: Fleet, *arguments: str, is_checked: bool = True
) -> subprocess.CompletedProcess[str]:
    # The certificates name this host.
    bootstrap = fleet.bootstrap.replace("127.0.0.1", "localhost")
    done = subprocess.run(
        [Path(sys.executable).with_name("quorumctl"), *arguments],
        env={**os.environ, "QUORUM_BOOTSTRAP_SERVERS": bootstrap},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not (is_checked and done.returncode), f"{arguments}: {done.stdout}{done.stderr}"
    return done
