"""Ctrl-C while Java works: py4j logs it with a traceback before it raises it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

WAITING_FOR_JAVA = """
import logging
import sys

import click
from py4j.java_gateway import GatewayClient

from quorumd.pipeline import cli


class Interrupted:
    socket = None

    def send_command(self, command):
        raise KeyboardInterrupt


@click.command()
def state():
    logging.getLogger("somebody").warning("else")
    client = GatewayClient()
    client._get_connection = Interrupted
    client.send_command("call")


cli.COMMANDS["state"] = cli.CommandEntry("__main__", "state", "")
sys.argv = ["quorumd-pipeline", "state"]
cli.main()
"""


@pytest.mark.parametrize(
    ("variables", "is_shown"), [({}, False), ({"QUORUMD_PIPELINE_TRACEBACK": "1"}, True)]
)
@pytest.mark.live
def test_an_interruption_shows_no_traceback_unless_it_is_wanted(
    variables: Mapping[str, str], is_shown: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITING_FOR_JAVA],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 130
    assert done.stderr.startswith("else\n")
    assert ("Traceback" in done.stderr) == is_shown
    assert is_shown or done.stderr == "else\n"
