"""The image's files, as far as they can be tested without an engine; `make test-containers` runs them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from quorumd.config import keys
from quorumd.config.load import load
from quorumd.config.tls import ClientAuth
from quorumd.server.certificate_checks import certificate_problems
from quorumd.server.main import EXIT_USAGE
from quorumd.server.main import cli as quorumd
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.meta_properties import LogOwner, load_meta_properties
from quorumd.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "deploy" / "containers"
COMPOSE = yaml.safe_load((ROOT / "deploy" / "docker-compose.yml").read_text())
SECURE_FILE = ROOT / "deploy" / "docker-compose.secure.yml"
SECURE = yaml.safe_load(SECURE_FILE.read_text())
KAFKA = yaml.safe_load((ROOT / "deploy" / "docker-compose.kafka.yml").read_text())
ENV_FILE = ROOT / "deploy" / ".env.example"
EXAMPLE = dict(
    line.split("=", 1)
    for line in ENV_FILE.read_text().splitlines()
    if line and not line.startswith("#")
)
CONTROLLERS = {n: COMPOSE["services"][f"quorumd-{n}"] for n in (1, 2, 3)}
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def filled_in(text: object) -> str:
    """With the variables of .env.example."""
    return re.sub(r"\$\{(\w+)[^}]*\}", lambda match: EXAMPLE[match[1]], str(text))


# -- what is installed


def needed_by(lines: Iterable[str], seen: set[str]) -> list[Requirement]:
    """What these requirements need, and what that needs, as the distributions installed here say."""
    found = []
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found.append(requirement)
            if (name := canonicalize_name(requirement.name)) not in seen:
                seen.add(name)
                found += needed_by(distribution(name).requires or [], seen)
    return found


def pinned_in(name: str) -> dict[str, str]:
    lines = (CONTAINERS / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_the_constraints_pin_all_that_quorumd_needs_and_nothing_else() -> None:
    pinned = pinned_in("constraints.txt")
    needed = needed_by(PROJECT["dependencies"], set())
    assert {canonicalize_name(each.name) for each in needed} == pinned.keys()
    for each in needed:
        assert each.specifier.contains(pinned[canonicalize_name(each.name)]), each


def test_the_constraints_of_the_pipeline_pin_what_spark_needs_beside_them() -> None:
    pinned, common = pinned_in("constraints-spark.txt"), pinned_in("constraints.txt")
    needed = needed_by(PROJECT["optional-dependencies"]["spark"], set())
    assert {canonicalize_name(each.name) for each in needed} - common.keys() == pinned.keys()
    for each in needed:
        assert each.specifier.contains((common | pinned)[canonicalize_name(each.name)]), each


def test_the_image_is_built_with_a_setuptools_that_serves() -> None:
    (pinned,) = re.findall(r"setuptools==([\d.]+)", DOCKERFILE)
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert [Requirement(each).specifier.contains(pinned) for each in wanted] == [True]


def test_the_image_is_compiled_with_the_compiler_of_the_tests() -> None:
    (pinned,) = re.findall(r"mypy==([\d.]+)", DOCKERFILE)
    assert f"mypy=={pinned}" in PROJECT["optional-dependencies"]["dev"]
    assert "QUORUMD_COMPILE=1" in DOCKERFILE


def test_every_package_is_copied_into_the_image() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {pattern.removesuffix("*") for pattern in tools["packages"]["find"]["include"]}
    assert {name for name in packages if f"COPY {name} /source/{name}\n" in DOCKERFILE} == packages
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    sources = " ".join(re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)).split()
    assert {f"{name}.py" for name in tools["py-modules"]} <= set(sources)
    for source in sources:
        assert f"!{source}" in allowed, source


# -- the compose file


def test_every_variable_of_the_compose_file_is_in_the_example_and_none_besides() -> None:
    text = (ROOT / "deploy" / "docker-compose.yml").read_text()
    assert set(re.findall(r"\$\{(\w+)", text)) == set(EXAMPLE) - {"COMPOSE_PROJECT_NAME"}


def test_the_example_names_the_version_of_the_project() -> None:
    assert EXAMPLE["QUORUMD_VERSION"] == VERSION
    assert EXAMPLE["QUORUMD_IMAGE"] == f"quorumd:{VERSION}"
    assert EXAMPLE["PIPELINE_IMAGE"] == f"quorumd-pipeline:{VERSION}"


@pytest.mark.parametrize("node", CONTROLLERS)
def test_the_environment_of_each_controller_is_a_sound_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: int
) -> None:
    service = CONTROLLERS[node]
    environ = {name: filled_in(value) for name, value in service["environment"].items()}
    (line,) = re.findall(r"^ENV QUORUMD_.+$", DOCKERFILE, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    config = load(None, {**dict(re.findall(r"(QUORUMD_\w+)=(\S+)", line)), **environ})
    assert config.node_id == node
    (own,) = (voter for voter in config.quorum_voters if voter.id == node)
    inside, outside = config.advertised_listeners
    assert (inside.host, inside.port) == (own.host, own.port) == (f"quorumd-{node}", 9093)
    assert config.http_listen is not None
    published = [filled_in(port).split(":") for port in service["ports"]]
    assert published == [
        ["127.0.0.1", str(outside.port), str(config.listeners[1].port)],
        ["127.0.0.1", EXAMPLE[f"HTTP_PORT_{node}"], str(config.http_listen.port)],
    ]
    unknown = environ.keys() - {keys.variable_of(key) for key in keys.KEYS}
    assert unknown == {"QUORUMD_FORMAT", "QUORUMD_LOG_LEVEL"}


def test_one_line_of_the_users_file_makes_all_of_them_secure() -> None:
    """Every service of the second file is one of the first, which it changes: none stays in plaintext."""
    (line,) = re.findall(r"^#(COMPOSE_FILE=\S+)$", ENV_FILE.read_text(), re.MULTILINE)
    name, _, files = line.partition("=")
    assert (name, files.split(":")) == ("COMPOSE_FILE", ["docker-compose.yml", SECURE_FILE.name])
    assert "COMPOSE_FILE" not in EXAMPLE, "off is the default"
    assert "remove the # before COMPOSE_FILE in deploy/.env" in SECURE_FILE.read_text()
    assert SECURE["services"].keys() == {"quorumd-1", "quorumd-2", "quorumd-3", "prometheus"}
    assert SECURE["services"].keys() < COMPOSE["services"].keys()
    for node in CONTROLLERS:
        added = SECURE["services"][f"quorumd-{node}"]["environment"]
        assert not added.keys() & COMPOSE["services"][f"quorumd-{node}"]["environment"].keys()
        assert added["QUORUMD_HTTP_SECURITY_PROTOCOL"] == "SSL"


@pytest.mark.parametrize("node", CONTROLLERS)
def test_with_tls_each_controller_has_its_own_secrets_and_a_sound_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: int
) -> None:
    """With certificates as the commands in the file's head make them."""
    for line in SECURE_FILE.read_text().splitlines():
        if "quorumd certs " in line:
            command = line.removeprefix("#").strip().replace("$n; done", str(node))
            arguments = command[command.index("certs ") :].replace("$n", str(node)).rstrip("; done")
            made = CliRunner().invoke(
                quorumd, arguments.replace("deploy/certs", str(tmp_path / "certs")).split()
            )
            assert made.exit_code == 0, made.output
    service = SECURE["services"][f"quorumd-{node}"]
    secrets = {
        f"/run/secrets/{each['target']}": tmp_path / SECURE["secrets"][each["source"]]["file"]
        for each in service["secrets"]
    }
    environ = {
        name: str(secrets.get(value, filled_in(value)))
        for name, value in {**CONTROLLERS[node]["environment"], **service["environment"]}.items()
    }
    monkeypatch.chdir(tmp_path)
    storage = {"QUORUMD_STORAGE_DIR": "data"}
    config = load(None, {**storage, **environ}, certificate_problems)
    assert [config.security_of(each.name) is not None for each in config.listeners] == [True, True]
    assert {path.name for path in secrets.values()} == {"ca.pem", f"quorumd-{node}.pem"}
    of_http = config.http_tls
    assert of_http is not None
    assert of_http.ssl_client_auth is ClientAuth.REQUIRED


def test_with_tls_prometheus_shows_a_certificate_of_its_own() -> None:
    service = SECURE["services"]["prometheus"]
    (mounted,) = service["volumes"]
    source, target, _ = mounted.split(":")
    assert target in {each.split(":")[1] for each in COMPOSE["services"]["prometheus"]["volumes"]}
    secure = yaml.safe_load((ROOT / "deploy" / source).read_text())
    plain = yaml.safe_load((CONTAINERS / "prometheus.yml").read_text())
    (job,) = secure["scrape_configs"]
    assert job.pop("scheme") == "https"
    files = job.pop("tls_config").values()
    assert secure == plain
    secrets = {f"/run/secrets/{each['target']}": each["source"] for each in service["secrets"]}
    assert set(files) == set(secrets)
    sources = {SECURE["secrets"][name]["file"] for name in secrets.values()}
    assert sources == {"./certs/ca.pem", "./certs/prometheus.pem"}


@pytest.mark.parametrize("name", ["observer", "witness"])
def test_beside_kafka_a_node_is_formatted_as_the_file_says_and_shut_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    service = KAFKA["services"][name]
    assert_shut_in(service)
    assert service["profiles"] == [name]
    variables = EXAMPLE | {"KAFKA_BOOTSTRAP_SERVERS": "controller1:9093", "KAFKA_NODE_ID": "9001"}
    environ = {
        key: re.sub(r"\$\{(\w+)[^}]*\}", lambda match: variables[match[1]], str(value))
        for key, value in service["environment"].items()
    }
    environ["QUORUMD_STORAGE_DIR"] = "data"
    monkeypatch.chdir(tmp_path)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    config = load(None, environ)
    assert config.quorum_witness is (name == "witness")
    assert config.advertised_listeners[0].port == config.listeners[0].port == 9093
    arguments = ["format", "--kafka-log", "--cluster-id", "5L6g3nShT-eMCtK--X86sw"]
    made = CliRunner().invoke(quorumd, arguments)
    assert made.exit_code == 0, made.output
    meta = load_meta_properties(RealFileSystem(), tmp_path / "data")
    assert meta is not None
    assert meta.log_owner is LogOwner.KAFKA


def test_no_service_bootstraps_and_each_has_a_volume_of_its_own() -> None:
    assert {service["environment"]["QUORUMD_FORMAT"] for service in CONTROLLERS.values()} == {
        "join"
    }
    volumes = [volume for service in CONTROLLERS.values() for volume in service["volumes"]]
    assert volumes == [f"data-{node}:/var/lib/quorumd" for node in CONTROLLERS]


def test_a_controller_has_as_long_to_hand_over_as_on_a_host() -> None:
    unit = (ROOT / "deploy/quorumd.service").read_text()
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    services = [*CONTROLLERS.values(), *KAFKA["services"].values()]
    assert {service["stop_grace_period"] for service in services} == {f"{seconds}s"}


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_every_service_is_shut_in(name: str) -> None:
    service: dict[str, Any] = COMPOSE["services"][name]
    assert_shut_in(service)
    assert all("${BIND_ADDRESS}:" in port for port in service.get("ports", ()))


def assert_shut_in(service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "cpus"} <= service.keys()


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_every_service_has_a_healthcheck(name: str) -> None:
    service = COMPOSE["services"][name]
    target = service.get("build", {}).get("target")
    stage = DOCKERFILE.partition(f" AS {target}\n")[2].partition("\nFROM ")[0]
    assert "healthcheck" in service or "HEALTHCHECK" in stage


def test_the_pipeline_runs_only_if_asked_for_and_knows_every_controller() -> None:
    profiles = {name: service.get("profiles") for name, service in COMPOSE["services"].items()}
    assert profiles.pop("pipeline") == ["spark"]
    assert set(profiles.values()) == {None}
    service = COMPOSE["services"]["pipeline"]
    command = service["command"]
    assert command[0] == "run"
    options = dict(zip(command[1::2], command[2::2], strict=True))
    voters = CONTROLLERS[1]["environment"]["QUORUMD_QUORUM_VOTERS"].split(",")
    assert options["--bootstrap-server"] == ",".join(each.partition("@")[2] for each in voters)
    assert service["volumes"] == [f"tables:{options['--output']}"]
    assert f"install -d -o 10001 -g 10001 -m 0700 {options['--output']}\n" in DOCKERFILE


def test_the_stages_that_are_built_exist_and_the_node_is_the_usual_one() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)
    assert {
        service["build"]["target"] for service in COMPOSE["services"].values() if "build" in service
    } <= set(stages)
    assert DOCKERFILE.splitlines()[-1] == "FROM node"


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_what_is_mounted_exists(name: str) -> None:
    sources = [volume.split(":")[0] for volume in COMPOSE["services"][name]["volumes"]]
    for source in sources:
        is_there = (ROOT / "deploy" / source).exists()
        assert is_there if source.startswith(".") else source in COMPOSE["volumes"], source


def test_prometheus_scrapes_the_controllers_and_is_otherwise_as_for_hosts() -> None:
    own = yaml.safe_load((CONTAINERS / "prometheus.yml").read_text())
    general = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (job,) = own["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"quorumd-{n}:8080" for n in CONTROLLERS]}]
    job["static_configs"] = general["scrape_configs"][0]["static_configs"]
    assert own.pop("rule_files") == [f"quorumd/{name}" for name in general.pop("rule_files")]
    assert own == general


def test_grafana_has_the_data_source_of_hosts_at_another_address() -> None:
    own = yaml.safe_load((CONTAINERS / "grafana-datasource.yml").read_text())
    path = ROOT / "deploy/grafana/provisioning/datasources/quorumd.yml"
    general = yaml.safe_load(path.read_text())
    assert own["datasources"][0].pop("url") == "http://prometheus:9090"
    del general["datasources"][0]["url"]
    assert own == general


# -- the entry point


def enter(
    folder: Path, *arguments: str, how: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the entry point for node 1, with its directory in `folder`; its port is taken."""
    taken = socket.create_server(("127.0.0.1", 0))
    listener = f"127.0.0.1:{taken.getsockname()[1]}"
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "QUORUMD_STORAGE_DIR": str(folder / "data"),
        "QUORUMD_NODE_ID": "1",
        "QUORUMD_LISTENERS": f"PEERS://{listener}",
        "QUORUMD_QUORUM_VOTERS": f"1@{listener}",
    }
    if how is not None:
        environ["QUORUMD_FORMAT"] = how
    with taken:
        return subprocess.run(
            [CONTAINERS / "entrypoint.sh", *arguments],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.mark.live
def test_bootstrap_formats_for_a_new_quorum_and_ends(tmp_path: Path) -> None:
    done = enter(tmp_path, "start", how="bootstrap")
    assert done.returncode == 0, done.stderr
    meta = load_meta_properties(RealFileSystem(), tmp_path / "data")
    assert meta.bootstrap
    assert not (tmp_path / "data" / ".lock").exists(), "the node was started"


@pytest.mark.live
def test_bootstrap_never_starts_a_node_that_is_formatted(tmp_path: Path) -> None:
    enter(tmp_path, "start", how="bootstrap")
    before = (tmp_path / "data" / "meta.properties").read_bytes()
    done = enter(tmp_path, "start", how="bootstrap")
    assert done.returncode == EXIT_USAGE
    assert "formatted already" in done.stderr
    assert (tmp_path / "data" / "meta.properties").read_bytes() == before
    assert not (tmp_path / "data" / ".lock").exists(), "the node was started"


@pytest.mark.long
@pytest.mark.parametrize("how", [None, "", "join"])
def test_an_empty_volume_joins_unless_told_otherwise(tmp_path: Path, how: str | None) -> None:
    done = enter(tmp_path, how=how)
    assert not load_meta_properties(RealFileSystem(), tmp_path / "data").bootstrap
    assert "observes until" in done.stderr
    # It ends because its port is taken; the lock shows that it was started.
    assert done.returncode == 1
    assert (tmp_path / "data" / ".lock").exists(), done.stderr


@pytest.mark.live
def test_another_word_is_refused_and_formats_nothing(tmp_path: Path) -> None:
    done = enter(tmp_path, "start", how="Bootstrap")
    assert done.returncode == EXIT_USAGE
    assert not (tmp_path / "data").exists()


@pytest.mark.live
def test_other_commands_format_nothing(tmp_path: Path) -> None:
    done = enter(tmp_path, "random-uuid")
    assert done.returncode == 0
    assert len(done.stdout.strip()) == 22
    assert not (tmp_path / "data").exists()
