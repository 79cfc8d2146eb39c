"""For the whole suite: tests marked `java` run, or are skipped with the reason, or fail on CI."""

from __future__ import annotations

import os

import pytest

from tests.support.kafka_jars import missing_tools


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("java") is None:
        return
    if reason := missing_tools():
        if os.environ.get("CI") == "true":
            pytest.fail(f"on CI the Java tests must run, but {reason}", pytrace=False)
        pytest.skip(reason)
