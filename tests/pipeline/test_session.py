"""A session of Spark that does not come to be."""

from __future__ import annotations

import subprocess

import pytest
from pyspark import SparkContext, java_gateway

from quorumd.pipeline.session import build_session


@pytest.mark.live
def test_ctrl_c_while_java_starts_leaves_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def launch(*arguments: object) -> None:
        started.append(subprocess.Popen(["sleep", "300"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    monkeypatch.setattr("quorumd.pipeline.session.use_java", lambda: None)
    with subprocess.Popen(["sleep", "300"]) as other:
        try:
            with pytest.raises(KeyboardInterrupt):
                build_session("interrupted")
            assert started[0].wait(10) == -15
            assert other.poll() is None, "it was there before"
        finally:
            other.kill()
            for process in started:
                process.kill()
