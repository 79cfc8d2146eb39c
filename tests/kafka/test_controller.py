"""The real Kafka controller that other tests use starts, answers, and leaves a readable log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorumd.cli.main import run
from tests.support.kafka_controller import CLUSTER_ID, running_controller
from tests.support.kafka_jars import requires_java
from tests.support.kafka_tools import run_tool


@requires_java
@pytest.mark.timeout(300)
def test_a_controller_answers_kafkas_own_tools_and_leaves_a_whole_log(tmp_path: Path) -> None:
    with running_controller(tmp_path / "kafka", node_id=7) as controller:
        status = run_tool(
            "org.apache.kafka.tools.MetadataQuorumCommand",
            *("--bootstrap-controller", controller.address, "describe", "--status"),
        )
        controller.stop()
    assert status.returncode == 0, status.stderr
    lines = [line.split(":", 1) for line in status.stdout.splitlines() if ":" in line]
    answers = {name: value.strip() for name, value in lines}
    assert (answers["ClusterId"], answers["LeaderId"]) == (CLUSTER_ID, "7")

    assert run(["verify", str(controller.data_folder)]) == 0
    (segment,) = controller.log_folder.glob("*.log")
    dump = run_tool(
        "org.apache.kafka.tools.DumpLogSegments",
        *("--files", str(segment), "--cluster-metadata-decoder"),
    )
    assert dump.returncode == 0, dump.stderr
    assert "LeaderChange" in dump.stdout


def test_the_reason_is_named_where_java_is_missing(tmp_path: Path) -> None:
    script = "from tests.support.kafka_jars import missing_tools; print(missing_tools())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PATH": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "Java is missing: install a JRE 17 or newer\n"


@pytest.mark.parametrize(("ci", "outcome"), [("true", "error"), ("", "skipped")])
def test_without_java_a_java_test_is_skipped_but_fails_on_ci(
    tmp_path: Path, ci: str, outcome: str
) -> None:
    root = Path(__file__).parents[2]
    test = "test_a_controller_answers_kafkas_own_tools_and_leaves_a_whole_log"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"{__file__}::{test}"],
        env={**os.environ, "PATH": str(tmp_path), "CI": ci},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"1 {outcome}" in done.stdout
    assert "Java is missing" in done.stdout
