"""Keeps the classes that Kafka's programs load in a form that a JVM maps: it halves their start.

An archive of other jars or another JVM is not used.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.kafka_controller import KafkaController
from tests.support.kafka_jars import SERVER, class_archive, java_command, missing_tools
from tests.support.ports import free_port

_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
_SETTLED_S = 3.0
"""So long a server loads classes after its start."""
_END_S = 120.0
"""A server writes the archive while it ends: where it is killed, there is none."""


def archive_classes() -> None:
    """Does nothing for what was archived before."""
    _archive(_PRODUCER, _run_producer)
    _archive(SERVER, _run_server)


def _archive(main_class: str, run: Callable[[str], None]) -> None:
    path = class_archive(main_class)
    if path.exists():
        return
    new = path.with_name(f"{path.name}.{os.getpid()}")
    run(f"-XX:ArchiveClassesAtExit={new}")
    if new.exists():
        new.rename(path)


def _run_producer(java_option: str) -> None:
    command = java_command(_PRODUCER, "--bootstrap-server", "127.0.0.1:9", "--topic", "x")
    command.insert(1, java_option)
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)


def _run_server(java_option: str) -> None:
    """A broker that is a controller, too, from its start to its end."""
    with tempfile.TemporaryDirectory() as folder:
        server = KafkaController(Path(folder, "server"))
        broker = f"PLAINTEXT://127.0.0.1:{free_port()}"
        server.extra = {
            "process.roles": "broker,controller",
            "listeners": f"CONTROLLER://{server.address},{broker}",
            "advertised.listeners": f"CONTROLLER://{server.address},{broker}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        }
        server.java_options = (java_option,)
        server.format()
        server.start()
        time.sleep(_SETTLED_S)
        server.stop(_END_S)


if __name__ == "__main__" and missing_tools() is None:  # before the tests, as the download
    archive_classes()
