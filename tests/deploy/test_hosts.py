"""The systemd unit and the sample configurations of three hosts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quorumd.config.load import load
from quorumd.server.main import EXIT_USAGE
from quorumd.server.node import CLOSE_GRACE_S
from quorumd.storage.errors import DamagedLog, DamagedSnapshot
from tests.deploy.files import FIREWALL, HOSTS, JOINING, UNIT

EXPOSURE_MAX = 20
"""In tenths, as systemd counts it: 0 is shut off from everything, 100 is not protected."""


def service() -> dict[str, list[str]]:
    """Every setting of the [Service] section, with its values in order."""
    found: dict[str, list[str]] = {}
    section = UNIT.read_text().partition("[Service]")[2].partition("[Install]")[0]
    for line in section.splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


# -- configurations


def test_the_three_hosts_are_the_voters_of_one_quorum() -> None:
    configs = [load(path, {}) for path in HOSTS]
    assert [config.node_id for config in configs] == [1, 2, 3]
    assert len({config.quorum_voters for config in configs}) == 1
    for config in configs:
        (own,) = (voter for voter in config.quorum_voters if voter.id == config.node_id)
        (advertised,) = config.advertised_listeners
        assert (advertised.host, advertised.port) == (own.host, own.port)
        assert config.listeners[0].port == own.port
        assert config.http_listen is not None


def test_hosts_differ_in_nothing_but_their_id_and_name() -> None:
    texts = set()
    for path in HOSTS:
        host = path.parent.name
        own = path.read_text().replace(f"Host {host} of", "Host N of")
        own = own.replace(f"node.id: {host}", "node.id: N")
        texts.add(own.replace(f"CONTROLLER://db{host}.", "CONTROLLER://dbN."))
    assert len(texts) == 1


def test_a_host_that_joins_asks_the_three_and_is_none_of_their_voters() -> None:
    joining, first = load(JOINING, {}), load(HOSTS[0], {})
    voters = first.quorum_voters
    assert joining.node_id not in {voter.id for voter in voters}
    assert joining.quorum_voters == ()
    assert [(each.host, each.port) for each in joining.quorum_bootstrap_servers] == [
        (voter.host, voter.port) for voter in voters
    ]
    assert (joining.listeners, joining.http_listen, joining.storage_dir) == (
        first.listeners,
        first.http_listen,
        first.storage_dir,
    )
    (advertised,) = joining.advertised_listeners
    assert advertised.host == voters[0].host.replace("1", "4")


def test_the_firewall_is_about_the_ports_of_the_hosts() -> None:
    config = load(HOSTS[0], {})
    assert config.http_listen is not None
    ports = {config.listeners[0].port, config.http_listen.port}
    rules = FIREWALL.read_text().splitlines()
    accepted = {
        int(match[1]) for line in rules if (match := re.match(r" +tcp dport (\d+) .*accept$", line))
    }
    (dropped,) = (line for line in rules if line.endswith("drop"))
    assert accepted == ports
    assert {int(port) for port in re.findall(r"\d+", dropped)} == ports


def test_nft_finds_no_fault_in_the_firewall() -> None:
    if shutil.which("nft") is None or os.geteuid() != 0:
        pytest.skip("this needs root and nft (Debian, Ubuntu: apt install nftables)")
    done = subprocess.run(
        ["nft", "-c", "-f", FIREWALL], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# -- the unit


def test_the_unit_starts_the_daemon_on_the_sample_configuration() -> None:
    settings = service()
    (command,) = settings["ExecStart"]
    assert command.split()[1:] == ["start", "--config", "/etc/quorumd/controller.yaml"]
    (state,) = settings["StateDirectory"]
    assert {load(path, {}).storage_dir for path in HOSTS} == {Path("/var/lib") / state}


def test_the_unit_does_not_restart_what_a_restart_cannot_heal() -> None:
    settings = service()
    assert settings["Restart"] == ["on-failure"]
    codes = {EXIT_USAGE, DamagedLog.exit_code, DamagedSnapshot.exit_code}
    assert {int(code) for code in settings["RestartPreventExitStatus"][0].split()} == codes


def test_the_unit_waits_for_the_time_of_day() -> None:
    """With TLS a node whose clock is behind ends with code 2, which is not repeated when the clock is set."""
    (line,) = (line for line in UNIT.read_text().splitlines() if line.startswith("After="))
    assert "time-sync.target" in line.partition("=")[2].split()


def test_the_unit_leaves_time_to_hand_over_and_files_for_every_connection() -> None:
    settings = service()
    for path in HOSTS:
        config = load(path, {})
        longest_s = 2 * config.quorum_request_timeout_ms / 1000 + 2 + CLOSE_GRACE_S
        assert float(settings["TimeoutStopSec"][0]) > longest_s
        assert int(settings["LimitNOFILE"][0]) > 2 * config.max_connections
    assert settings["KillSignal"] == ["SIGTERM"]
    assert settings["KillMode"] == ["mixed"]


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a command that is there: systemd looks whether it can be run."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    path = tmp_path / UNIT.name
    program = Path(sys.executable).with_name("quorumd")
    path.write_text(UNIT.read_text().replace("=/opt/quorumd/bin/quorumd", f"={program}"))
    return path


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.live
def test_systemd_finds_no_fault_in_the_unit(unit: Path) -> None:
    done = analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.live
def test_systemd_notices_a_setting_that_it_does_not_know(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("NoNewPrivileges=", "NoNewPrivilege="))
    assert "NoNewPrivilege" in analyze("verify", "--man=no", unit).stderr


@pytest.mark.live
def test_the_daemon_can_reach_little_beside_its_directory(unit: Path) -> None:
    version = int(analyze("--version").stdout.split()[1])
    if version < 250:
        pytest.skip(f"systemd {version} cannot judge a unit that is not loaded: 250 is needed")
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", unit)
    assert done.returncode == 0, done.stdout
