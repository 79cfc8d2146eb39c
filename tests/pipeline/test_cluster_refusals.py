"""Masters that are none, that nobody answers at, or that give nothing: one line, without starting Java."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quorumd.pipeline import executors, session
from quorumd.pipeline.cli import run
from quorumd.pipeline.errors import SparkMissing
from quorumd.pipeline.session import build_session, check_master
from tests.pipeline.nodes import make_node
from tests.support.ports import free_ports


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "quorumd.pipeline.session.use_java", lambda: pytest.fail("it was to end before")
    )


@pytest.mark.parametrize(
    "master",
    [
        "nonsense",
        "spark://host",
        "spark://host:0",
        "local[x]",
        "local-cluster[2,1]",
        "mesos://host:1",
    ],
)
def test_what_is_no_master_is_wrong_usage(
    master: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_node(tmp_path / "node", 1)
    commands = [
        ["batch", "--path", str(tmp_path / "node"), "--output", str(tmp_path / "tables")],
        ["audit", str(tmp_path / "node")],
    ]
    for command in commands:
        assert run([*command, "--master", master]) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("Error: ")
        assert master.removeprefix("spark://") in last


@pytest.mark.live
def test_a_master_that_nobody_answers_at_is_one_line_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_node(tmp_path / "node", 1)
    first, second = free_ports(2)
    master = f"spark://127.0.0.1:{first},127.0.0.1:{second}"
    begun = time.monotonic()
    assert run(["audit", str(tmp_path / "node"), "--master", master]) == 1
    assert time.monotonic() - begun < 10
    (said,) = capsys.readouterr().err.splitlines()
    assert f"127.0.0.1:{first}: Connection refused; 127.0.0.1:{second}: Connection" in said
    assert run(["doctor", "--master", master]) == 1
    (session,) = [line for line in capsys.readouterr().out.splitlines() if "session" in line]
    assert "FAILED  no Spark master responds" in session


def test_a_name_that_does_not_resolve_is_told() -> None:
    with pytest.raises(SparkMissing, match=r"nowhere\.invalid:7077: .*known"):
        check_master("spark://nowhere.invalid:7077")


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[2,4]", "local-cluster[2, 1, 1024]", "yarn", "k8s://a:1"]
)
def test_masters_of_every_kind_that_spark_knows_are_taken(master: str) -> None:
    check_master(master)


def test_a_cluster_that_gives_no_executor_is_told_while_the_command_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    master = "spark://127.0.0.1:7077"
    started = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    monkeypatch.setattr(session, "check_master", lambda master: None)
    monkeypatch.setattr(session, "use_java", lambda: None)
    monkeypatch.setattr(session, "register", lambda spark: None)
    monkeypatch.setattr(session, "_launch", lambda conf, log: started)
    monkeypatch.setattr(session, "_EXECUTORS_S", 0)
    monkeypatch.setattr(executors, "_POLL_S", 0)
    monkeypatch.setattr(executors, "_executors", lambda spark: 1)
    assert build_session("test", master=master) is started
    assert f"Warning: {master} has given no executor so far" in capsys.readouterr().err
    monkeypatch.setattr(executors, "_executors", lambda spark: 2)
    build_session("test", master=master)
    assert capsys.readouterr().err == ""


def test_what_listens_and_is_no_master_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    master = f"spark://127.0.0.1:{port}"

    def launch(*_: Any) -> None:
        raise RuntimeError(
            "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."
        )

    monkeypatch.setattr(session, "check_master", lambda master: None)
    monkeypatch.setattr(session, "use_java", lambda: None)
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch)
    with pytest.raises(SparkMissing, match=f"127.0.0.1:{port} does not respond as a Spark master"):
        build_session("test", master=master)
