"""A SparkSession for the commands: quiet, on the loopback unless a master is named, on a Java that is found.

Nothing here is needed by programs that have a session already.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from quorumd.pipeline import register
from quorumd.pipeline.errors import SparkMissing, plain_message
from quorumd.pipeline.java import use_java

if TYPE_CHECKING:
    from pyspark import SparkConf
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


def build_session(
    name: str,
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    log_file: Path | None = None,
) -> SparkSession:
    """A session for a command, or the one that spark-submit has prepared for this process.

    `config` comes on top of what is set here. Spark's own log goes to `log_file` (appended; WARN and
    above), else nowhere. Stop the session. Raises JavaMissing, SparkMissing.
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
    if not is_submitted:
        use_java()
        master = master or conf.get("spark.master") or MASTER_DEFAULT
        conf.setAll(list(_QUIET.items()))
        conf.set("spark.log.level", "WARN" if log_file else "OFF")
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            conf.setAll(list(_ON_LOOPBACK.items()))
        # Workers are to be this Python, whatever is first on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is not None:
        conf.setMaster(master)
    conf.setAll(list((config or {}).items()))
    if is_submitted:
        session = SparkSession.builder.config(conf=conf).getOrCreate()
    else:
        with log_file.open("ab") if log_file else tempfile.TemporaryFile() as log:
            session = _launch(conf, log)
    # Spark's own look-up fails if any module named pyspark_* does.
    register(session)
    return session


def _launch(conf: SparkConf, log: IO[bytes]) -> SparkSession:
    """Starts the JVM, whose stdout and stderr go to `log`, and the session in it."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    try:
        # A context that was stopped leaves its JVM for the next one.
        if SparkContext._gateway is None:
            streams = {"stdout": log, "stderr": log}
            gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]  # PySpark gives no types
            SparkContext(conf=conf, gateway=gateway)
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except Exception as error:
        raise SparkMissing(f"Spark does not start: {plain_message(error)}{_said(log)}") from error


def _said(log: IO[bytes]) -> str:
    """The last lines of a log, on one line."""
    log.flush()
    if not log.readable():
        return f" (see {log.name})"
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    told = [line.strip() for line in lines if line.strip()][-_TAIL_LINES:]
    return f" ({' / '.join(told)})" if told else ""
