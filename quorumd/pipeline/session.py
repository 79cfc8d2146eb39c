"""A SparkSession for the commands: quiet, on the loopback unless a master is named, on a Java that is found.

Nothing here is needed by programs that have a session already.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from quorumd.client.addresses import parse_addresses
from quorumd.pipeline import register
from quorumd.pipeline.errors import BadOption, SparkMissing, plain_message
from quorumd.pipeline.executors import wait_executors
from quorumd.pipeline.java import use_java

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

MASTER_DEFAULT = "local[*]"
QUICK_START = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
"""Configuration for a session that is over in seconds: it starts with half the work, and computes slower."""
_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
_ON_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_TAIL_LINES = 5
_CONNECT_S = 5.0
_EXECUTORS_S = 15.0
_MASTER = re.compile(
    r"local(\[(\d+|\*)(, *\d+)?])?"
    r"|local-cluster\[ *\d+ *, *\d+ *, *\d+ *]"
    r"|spark://[^/,]+:\d+(,[^/,]+:\d+)*"
    r"|yarn|k8s://.+"
)
"""Masters that spark-submit accepts; for others it only says that Java has exited."""


def build_session(
    name: str,
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    log_file: Path | None = None,
) -> SparkSession:
    """A session for a command, or the one that spark-submit has prepared for this process.

    `config` comes on top of what is set here. Spark's own log goes to `log_file` (appended; WARN and
    above), else nowhere. Stop the session. Raises JavaMissing, SparkMissing, BadOption.
    """
    try:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkMissing(
            f"PySpark is not installed ({error}): pip install 'quorumd[spark]'"
        ) from None
    conf = SparkConf().setAppName(name)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    # Workers are to be this Python, whatever is first on their PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not is_submitted:
        master = master or conf.get("spark.master") or MASTER_DEFAULT
        check_master(master)
        use_java()
        conf.setAll(list(_QUIET.items()))
        conf.set("spark.log.level", "WARN" if log_file else "OFF")
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            conf.setAll(list(_ON_LOOPBACK.items()))
    if master is not None:
        conf.setMaster(master)
    conf.setAll(list((config or {}).items()))
    if is_submitted:
        session = SparkSession.builder.config(conf=conf).getOrCreate()
    else:
        with log_file.open("ab") if log_file else tempfile.TemporaryFile() as log:
            session = _launch(conf, log)
        url = str(session.sparkContext.master)
        if url.startswith("spark://") and not wait_executors(session, _EXECUTORS_S):
            click.echo(f"Warning: {no_executors(url)}. Waiting.", err=True)
    # Spark's own look-up fails if any module named pyspark_* does.
    register(session)
    return session


def check_master(master: str) -> None:
    """Raises BadOption for a text that is no master, SparkMissing if none responds at spark:// addresses.

    Spark itself would try for a minute, and then say that its context has been stopped.
    """
    if not _MASTER.fullmatch(master):
        raise BadOption(
            f"there is no Spark master of the kind {master!r}: expected local[*], local[N], "
            "local-cluster[WORKERS,CORES,MEGABYTES], spark://HOST:PORT, yarn or k8s://..."
        )
    if not master.startswith("spark://"):
        return
    try:
        addresses = parse_addresses(master)
    except ValueError as error:
        raise BadOption(f"{master}: {error}") from None
    refused = []
    for address in addresses:
        try:
            socket.create_connection(address, _CONNECT_S).close()
        except OSError as error:
            refused.append(f"{address}: {error.strerror or error}")
        else:
            return
    raise SparkMissing(
        f"no Spark master responds ({'; '.join(refused)}). Is it started, and is this the address that its "
        "log shows after 'Starting Spark master at'?"
    )


def has_executors(master: str) -> bool:
    """True if tasks run in other processes than the driver."""
    return not master.startswith("local") or master.startswith("local-cluster")


def no_executors(master: str) -> str:
    """The message if a cluster gives nothing to compute with."""
    return (
        f"{master} has given no executor so far: are there workers, with free cores and as much memory as "
        "spark.executor.memory says (1 GiB if nothing is set)? The page of the master shows them"
    )


def _launch(conf: SparkConf, log: IO[bytes]) -> SparkSession:
    """Starts the JVM, whose stdout and stderr go to `log`, and the session in it."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    try:
        # A context that was stopped leaves its JVM for the next one.
        if SparkContext._gateway is None:
            streams = {"stdout": log, "stderr": log}
            with _no_java_left():
                gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]  # PySpark gives no types
            _silence_accumulators(SparkContext(conf=conf, gateway=gateway))
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except Exception as error:
        text = plain_message(error)
        if "stopped SparkContext" in text:
            # Spark has tried three times, 20 s each, which no setting shortens.
            raise SparkMissing(
                f"what listens at {conf.get('spark.master')} does not respond as a Spark master does: is the "
                "port right, and has it the same version of Spark? The port of its page is another one"
            ) from error
        raise SparkMissing(f"Spark does not start: {text}{_said(log)}") from error


def _silence_accumulators(context: SparkContext) -> None:
    """PySpark's server of accumulators shows a traceback when Java ends first. Who waits for Java says so."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda request, address: None


@contextmanager
def _no_java_left() -> Iterator[None]:
    """At Ctrl-C PySpark deletes the folder that the Java it has just started is about to write to: that would
    run on for ever."""
    before = _children()
    try:
        yield
    except KeyboardInterrupt:
        for pid in _children() - before:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        raise


def _children() -> set[int]:
    paths = Path("/proc/self/task").glob("*/children")
    return {int(pid) for path in paths for pid in path.read_text().split()}


def _said(log: IO[bytes]) -> str:
    """The last lines of a log, on one line."""
    log.flush()
    if not log.readable():
        return f" (see {log.name})"
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    tail = [line.strip() for line in lines if line.strip()][-_TAIL_LINES:]
    return f" ({' / '.join(tail)})" if tail else ""
