"""The Python environments of Spark's executors: separate processes, which import what they need there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED: Final = {
    "quorumd": "quorumd.pipeline.source.live",
    "pyspark": "pyspark.sql.datasource",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "crc32c": "crc32c",
}
"""Packages, and of each the module that reading a log imports."""
OF_A_ZIP: Final = "(of a zip)"
"""The version of a package that is not installed."""
_POLL_S = 0.1
_SETTLED_S = 2.0
"""When no executor has registered for so long, all have."""


@dataclass(frozen=True, slots=True, order=True)
class Executor:
    """The Python of an executor: versions of its packages, and why the others do not import."""

    host: str
    python: str
    version: str
    packages: tuple[tuple[str, str], ...]
    missing: tuple[tuple[str, str], ...]


def wait_executors(spark: SparkSession, timeout_s: float) -> bool:
    """True as soon as there is an executor besides the driver."""
    deadline = time.monotonic() + timeout_s
    while _executors(spark) < 2:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def inspect_executors(spark: SparkSession) -> list[Executor]:
    """Every different one, by host: there is a task for each core. Raises what Spark does."""
    count = 0
    while (now := _executors(spark)) != count:
        count = now
        time.sleep(_SETTLED_S)
    context = spark.sparkContext
    tasks = max(context.defaultParallelism, count)
    found = context.parallelize(range(tasks), tasks).map(_inspect()).collect()
    return sorted({Executor(*each) for each in found})


def _executors(spark: SparkSession) -> int:
    """The number of executors, the driver included."""
    return len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos())


def _inspect() -> Callable[[int], tuple[Any, ...]]:
    """The task. A function within a function is sent as it is: quorumd may be what is missing there."""

    def probe(_: int) -> tuple[Any, ...]:
        import importlib
        import importlib.metadata
        import platform
        import socket
        import sys

        packages, missing = [], []
        for package, module in NEEDED.items():
            try:
                importlib.import_module(module)
                found = getattr(sys.modules[package], "__version__", None)
                packages.append((package, found or importlib.metadata.version(package)))
            except importlib.metadata.PackageNotFoundError:
                packages.append((package, OF_A_ZIP))
            except Exception as error:
                missing.append((package, f"{type(error).__name__}: {error}"))
        version = platform.python_version()
        return socket.gethostname(), sys.executable, version, tuple(packages), tuple(missing)

    return probe
