"""Kafka's own command line programs: one after the other in one JVM, or each in its own beside the test."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.support.kafka_jars import java_command
from tests.support.kafka_tools import run_tool
from tests.support.live_cluster import TOPIC, Cluster

TOOLS = "org.apache.kafka.tools"
PRODUCER = f"{TOOLS}.ConsoleProducer"
CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
PERFORMANCE = f"{TOOLS}.ProducerPerformance"
END_S = 60.0

_LINE = re.compile(r"CreateTime:(\d+)\tOffset:(\d+)\t(.*)")


class Command(NamedTuple):
    """A program, its arguments, and what it reads from stdin."""

    main_class: str
    arguments: tuple[str, ...]
    stdin: str = ""


class Line(NamedTuple):
    """A record as the console consumer prints it."""

    timestamp_ms: int
    offset: int
    value: str


def run_all(commands: Iterable[Command]) -> list[subprocess.CompletedProcess[str]]:
    """Their outcomes in the order of the commands."""
    return [run_tool(each.main_class, *each.arguments, stdin=each.stdin) for each in commands]


def console_producer(
    cluster: Cluster, lines: Iterable[str], *, codec: str | None = None, **properties: object
) -> Command:
    """Writes lines; properties are the producer's, with `_` for dots."""
    arguments = producer_arguments(cluster, **properties)
    if codec is not None:
        arguments += ("--compression-codec", codec)
    return Command(PRODUCER, arguments, "".join(f"{line}\n" for line in lines))


def producer_arguments(cluster: Cluster, **properties: object) -> tuple[str, ...]:
    arguments = ["--bootstrap-server", cluster.bootstrap, "--topic", TOPIC]
    for name, value in properties.items():
        arguments += ["--command-property", f"{name.replace('_', '.')}={value}"]
    return tuple(arguments)


def console_consumer(cluster: Cluster, offset: str | int, count: int | None) -> Command:
    """Reads partition 0 from an offset, `earliest` or `latest`; without a count for ever."""
    arguments = ["--bootstrap-server", cluster.bootstrap, "--topic", TOPIC]
    arguments += ["--partition", "0", "--offset", str(offset)]
    for shown in ("timestamp", "offset"):
        arguments += ["--formatter-property", f"print.{shown}=true"]
    if count is not None:
        arguments += ["--max-messages", str(count), "--timeout-ms", "20000"]
    return Command(CONSUMER, tuple(arguments))


def lines_of(output: str) -> list[Line]:
    """What the console consumer printed, without a last line that is cut."""
    whole = output[: output.rfind("\n") + 1]
    found = (_LINE.fullmatch(line) for line in whole.split("\n"))
    return [Line(int(match[1]), int(match[2]), match[3]) for match in found if match]


class Running:
    """A program that runs beside the test; what it prints goes to files in `folder`."""

    def __init__(self, folder: Path, name: str, command: Command) -> None:
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                java_command(command.main_class, *command.arguments),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def feed(self, line: str) -> None:
        """Give it a line."""
        assert self._process.stdin is not None, "it was opened"
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def finish(self) -> int:
        """End its input, wait for its end, and return its exit code."""
        assert self._process.stdin is not None, "it was opened"
        self._process.stdin.close()
        return self._process.wait(END_S)

    def close(self) -> None:
        """End it, whatever it does."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
