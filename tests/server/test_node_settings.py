"""What the parts of a node take of its configuration: each value in the unit that it has there."""

from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumd.config.addresses import ConfiguredVoter
from quorumd.config.connection_limits import ConnectionLimits, ListenerLimits
from quorumd.config.model import Config
from quorumd.raft.types import Endpoint
from quorumd.server import node
from quorumd.server import run as run_module
from quorumd.server.daemon_runtime import daemon_runtime
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.topic import METADATA
from quorumd.server.net.connection_slots import NEW_MAX
from quorumd.server.partition.partition import PartitionSettings
from quorumd.server.run import CLIENTS_MIN, OTHER_FILES, TooFewFiles
from quorumd.storage.directory import format_directory, open_directory
from quorumd.storage.filesystem import RealFileSystem
from tests.support.serving import run

# Compiled rooms take no stand-ins.
pytestmark = pytest.mark.pure


def config_of(folder: Path, **keys: Any) -> Config:
    at = Endpoint("CONTROLLER", "127.0.0.1", 9093)
    return Config(
        node_id=1,
        storage_dir=folder,
        listeners=(at,),
        advertised_listeners=(at,),
        quorum_voters=(ConfiguredVoter(1, "127.0.0.1", 9093),),
        **keys,
    )


@pytest.fixture
def settings_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The settings that come of some keys."""

    def made(
        topic: object, recovered: object, stored: object, settings: object, *_: object
    ) -> object:
        return settings

    monkeypatch.setattr(node, "Partition", made)

    def settings(**keys: Any) -> PartitionSettings:
        config = config_of(tmp_path, **keys)
        fs = RealFileSystem()
        if not any(tmp_path.iterdir()):
            format_directory(fs, tmp_path, node_id=1, bootstrap=True)
        directory = open_directory(fs, tmp_path, node_id=1)

        def fail(reason: str, error: BaseException | None) -> None:
            raise AssertionError(reason) from error

        async def work() -> PartitionSettings:
            runtime = daemon_runtime()
            opened = node.open_partition(METADATA, config, fs, directory, Metrics(), fail, runtime)
            return cast(PartitionSettings, opened)

        try:
            return cast(PartitionSettings, run(work()))
        finally:
            directory.close()

    return settings


@pytest.mark.parametrize(
    ("fetch_timeout_ms", "wait_ms"), [(2000, 500), (1000, 500), (998, 499), (100, 50)]
)
def test_a_fetch_waits_for_records_for_half_of_what_a_leader_may_be_silent(
    settings_of: Any, fetch_timeout_ms: int, wait_ms: int
) -> None:
    """A response that comes later would depose a leader that has nothing to do."""
    made = settings_of(quorum_fetch_timeout_ms=fetch_timeout_ms)
    assert made.outbound.fetch_wait_ms == wait_ms
    assert made.raft.fetch_timeout_ms == fetch_timeout_ms
    assert made.snapshots.copier_silent_s == 5 * fetch_timeout_ms / 1000


def test_every_other_limit_is_the_one_that_is_configured(settings_of: Any) -> None:
    made = settings_of(
        quorum_election_timeout_ms=701,
        quorum_election_backoff_max_ms=702,
        quorum_request_timeout_ms=703,
        quorum_retry_backoff_ms=704,
        quorum_retry_backoff_max_ms=705,
        snapshot_max_new_record_bytes=706,
        snapshot_interval_ms=7_070,
        snapshot_bandwidth_bytes_per_second=708,
        retention_bytes=709,
        retention_ms=710,
        log_max_batch_bytes=711,
        conditions_window_bytes=712,
    )
    raft, snapshots = made.raft, made.snapshots
    assert (
        raft.election_timeout_ms,
        raft.election_backoff_max_ms,
        made.outbound.request_timeout_ms,
        raft.retry_backoff_ms,
        raft.retry_backoff_max_ms,
        snapshots.max_new_record_bytes,
        snapshots.interval_s,
        raft.snapshot_bytes_per_s,
        snapshots.retention_bytes,
        snapshots.retention_ms,
        made.max_batch_bytes,
        made.condition_window_bytes,
    ) == (701, 702, 703, 704, 705, 706, 7.07, 708, 709, 710, 711, 712)


def test_listeners_have_the_limits_that_are_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []
    outbound = SimpleNamespace(addresses=None, is_behind=None)
    partition = SimpleNamespace(outbound=outbound)
    monkeypatch.setattr(node, "open_partition", lambda *_: partition)
    monkeypatch.setattr(node, "daemon_runtime", lambda links: None)
    monkeypatch.setattr(node, "Dispatch", lambda *_, **__: None)
    monkeypatch.setattr(node, "Listeners", lambda *_, **limits: given.append(limits))
    config = config_of(
        tmp_path,
        socket_request_max_bytes=5001,
        max_connections=52,
        connections_max_idle_ms=5003,
        max_connections_per_ip=54,
        max_connections_per_ip_overrides={"10.0.0.7": 55},
        max_connection_creation_rate=56,
        listener_limits={"CONTROLLER": ListenerLimits(57)},
    )

    async def work() -> None:
        node.Node(config, RealFileSystem(), cast(Any, None), lambda code: None)

    run(work())
    (limits,) = given
    assert limits["max_frame_bytes"] == 5001
    assert limits["max_connections"] == 52
    assert limits["max_idle_ms"] == 5003
    assert limits["limits"] == ConnectionLimits(54, {"10.0.0.7": 55}, 56)
    assert limits["limits_of"] == {"CONTROLLER": ListenerLimits(57)}


@pytest.mark.parametrize(
    ("spare", "clients"),
    [(CLIENTS_MIN - 1, None), (CLIENTS_MIN, 16), (99, 99), (100, 100), (101, 100)],
)
def test_there_are_no_more_clients_than_there_may_be_open_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spare: int,
    clients: int | None,
) -> None:
    files_max = NEW_MAX + OTHER_FILES + spare
    limits = [(1024, files_max)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: limits.append(new))
    config = config_of(tmp_path, max_connections=100)
    if clients is None:
        with pytest.raises(TooFewFiles):
            run_module._fit_to_file_limit(config)
    else:
        assert run_module._fit_to_file_limit(config).max_connections == clients
        assert len(caplog.records) == (spare < 100)
    assert limits[-1] == (files_max, files_max)
