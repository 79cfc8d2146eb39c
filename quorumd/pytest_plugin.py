"""The fixtures `quorum` and `own_quorum`, where pytest and quorumd are installed.

Every run of pytest imports this, also where no test uses it: it loads nothing of quorumd by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from quorumd.testing import LocalQuorum
    from quorumd.testing.shared_quorum import SharedQuorum

_tests = 0
"""Number of tests that had the fixture `quorum` so far."""


@pytest.fixture(scope="session")
def _quorum_of_session() -> Iterator[LocalQuorum]:
    from quorumd.testing import LocalQuorum

    with LocalQuorum() as local:
        yield local


@pytest.fixture
def quorum(_quorum_of_session: LocalQuorum, request: pytest.FixtureRequest) -> SharedQuorum:
    """A quorum of three nodes that all tests of a session share; `quorum.prefix` and `quorum.key(name)` give
    each its own keys. With xdist, each worker has its own."""
    global _tests
    from quorumd.testing.shared_quorum import SharedQuorum

    _tests += 1
    return SharedQuorum(_quorum_of_session, f"{request.node.name}-{_tests}/")


@pytest.fixture
def own_quorum() -> Iterator[LocalQuorum]:
    """A quorum of three nodes that is this test's alone: it may kill, pause and part them."""
    from quorumd.testing import LocalQuorum

    with LocalQuorum() as local:
        yield local


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the nodes have logged."""
    report = yield
    if report.failed and (testing := sys.modules.get("quorumd.testing")) is not None:
        shown = (testing.LocalQuorum, testing.SharedQuorum, testing.AsyncLocalQuorum)
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, shown):
                report.sections.append((f"quorumd nodes of {name}", value.logs()))
    return report
