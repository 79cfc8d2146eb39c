"""A session of Spark that does not come to be."""

from __future__ import annotations

import socket
import socketserver
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext, java_gateway

from quorumd.pipeline.session import _silence_accumulators, build_session


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


class _Ended(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        raise EOFError


def test_java_that_ends_first_shows_no_traceback_of_accumulators(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), _Ended) as server:
        context: Any = SimpleNamespace(_accumulatorServer=server)
        _silence_accumulators(context)
        with socket.create_connection(server.server_address[:2]):
            server.handle_request()
    assert capsys.readouterr().err == ""
