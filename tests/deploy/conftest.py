"""Who needs Prometheus gets it, or is skipped with the reason, or fails on CI."""

from __future__ import annotations

import os

import pytest

from tests.deploy.prometheus import CannotFetch, Programs, programs


@pytest.fixture(scope="session")
def prometheus() -> Programs:
    try:
        return programs()
    except CannotFetch as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"on CI the tests with Prometheus must run, but {error}", pytrace=False)
        pytest.skip(str(error))
