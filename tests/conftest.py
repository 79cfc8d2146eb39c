"""For the whole suite: what a `java` mark does, and that generated input is the same in every run.

A test marked `java` runs, or is skipped with the reason, or fails on CI. To look for new input:
HYPOTHESIS_PROFILE=explore.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.kafka_jars import missing_tools
from tests.support.live_cluster import Cluster

# A shell that runs the tests in the background has them ignore Ctrl-C, and with them all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of nodes and commands are started: each of them would compile all sources anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with tests that may take long begin first, so that no process is left with one at the end."""
    longest: dict[Path, float] = {}
    for item in items:
        marker = item.get_closest_marker("timeout")
        limit_s = marker.args[0] if marker is not None else 0.0
        longest[item.path] = max(longest.get(item.path, 0.0), limit_s)
    items.sort(key=lambda item: -longest[item.path])


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("java") is None:
        return
    if reason := missing_tools():
        if os.environ.get("CI") == "true":
            pytest.fail(f"on CI the Java tests must run, but {reason}", pytrace=False)
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the nodes of a live quorum have logged."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Cluster):
                report.sections.append((f"nodes of {name}", value.logs()))
    return report
