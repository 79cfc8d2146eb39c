"""For the whole suite: the marks, and that generated input is the same in every run.

A test marked `java` or `spark` runs, or is skipped with the reason, or fails on CI. To look for new input:
HYPOTHESIS_PROFILE=explore.
"""

from __future__ import annotations

import gc
import inspect
import os
import re
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from quorumd.pipeline.errors import JavaMissing
from quorumd.pipeline.java import find_java
from quorumd.version import form
from tests.support import browser, canary
from tests.support.kafka_jars import missing_tools
from tests.support.live_cluster import Cluster

# A shell that runs the tests in the background has them ignore Ctrl-C, and with them all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of nodes and commands are started: each of them would compile all sources anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


TESTS = Path(__file__).parent
BIN = Path(sys.executable).parent
MARKS_OF_FOLDERS = {
    "clients": "live",
    "daemon": "live",
    "demo": "live",
    "examples": "live",
    "kafka": "live",
    "packaging": "live",
    "testing": "live",
}
MARKS_OF_FIXTURES = {"browser": "browser", "healthy": "live", "quick_start": "spark"}
MARKS_OF_TYPES = dict.fromkeys(
    (
        "Cluster",
        "Iterator[Cluster]",
        "Iterator[CleanedLog]",
        "Iterator[Secure]",
        "Iterator[Watched]",
    ),
    "live",
)
"""Of what fixtures give."""
MARKS_OF_NAMES = dict.fromkeys(("COMMAND", "on_a_terminal", "running_cluster", "started"), "live")
"""Of what a test's function calls."""
MARKS_FOR_PROGRAMS = {
    **{name: {"live"} for name in ("node", "quorumctl", "quorumd")},
    "quorumd-pipeline": {"live", "spark"},
    "java": {"java", "spark"},
    "spark-submit": {"spark"},
    **{name: {"browser"} for name in browser.NAMES},
}
"""Who starts such a program has one of these marks."""
NOT_QUICK = frozenset({"browser", "compiled", "java", "live", "long", "sim", "spark"})
"""Who starts any other program, Python or git for example, has one of these: `make quick` leaves it out."""
SHARED = re.compile(
    r"^def test_\w+\([^)]*\b(?:(?:kafka|first): (Kafka)|spark: (Spark))", re.MULTILINE
)
"""A test that uses the three controllers of tests/kafka/conftest.py, or the session of tests/pipeline's."""
SPARK_CLUSTER = "tests/pipeline/test_cluster.py"
"""It takes as long as all others that use the Spark session."""
SLOW_MARKS = ("browser", "java", "live", "long", "sim", "spark")
_marks: set[str] | None = None
"""Those of the test that runs."""


@pytest.fixture
def no_signal_is_ignored() -> Iterator[None]:
    """A shell that runs these tests in the background, or nohup, ignores some; commands inherit that.

    A command that another test ran in this process may have left a handler or a mask of its own.
    """
    numbers = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT}
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Folders, fixtures and helpers that start something give their users a mark."""
    marks = {MARKS_OF_FOLDERS.get(item.path.relative_to(TESTS).parts[0])}
    if isinstance(item, pytest.Function):
        marks |= set(map(MARKS_OF_NAMES.get, inspect.unwrap(item.function).__code__.co_names))
        for name, definitions in item._fixtureinfo.name2fixturedefs.items():
            given = [each.func.__annotations__.get("return") for each in definitions]
            marks |= {MARKS_OF_FIXTURES.get(name), *map(MARKS_OF_TYPES.get, given)}
    for mark in sorted(filter(None, marks)):
        item.add_marker(mark)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """While it runs, a test starts no program whose mark it has not."""
    global _marks
    _marks = {mark.name for mark in item.iter_markers()}
    try:
        return (yield)
    finally:
        _marks = None
        if nextitem is None or nextitem.path != item.path:
            _close_what_is_left(item)


def _close_what_is_left(item: pytest.Item) -> None:
    """What clients of others leave to the garbage collector is closed behind the module that says so.

    Only here: pytest keeps what they log, and with it their sockets, until a test is over. Whichever test
    ran when the collector came by would fail.
    """
    filters = [each.args[0] for each in item.iter_markers("filterwarnings")]
    if "ignore::ResourceWarning" in filters:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def _check_start(event: str, arguments: tuple[object, ...]) -> None:
    if event != "subprocess.Popen" or _marks is None:
        return
    executable, words = Path(os.fsdecode(arguments[0])), arguments[1]
    wanted = MARKS_FOR_PROGRAMS.get(executable.name, NOT_QUICK)
    is_made_up = executable.is_relative_to(tempfile.gettempdir()) and BIN not in executable.parents
    asks_version = isinstance(words, list) and "-version" in words
    if not wanted & _marks and not is_made_up and not asks_version:
        names = "live, or long" if wanted is NOT_QUICK else " or ".join(sorted(wanted))
        raise AssertionError(f"who starts {executable} is marked {names}")


sys.addaudithook(_check_start)


class SharedScheduling(LoadFileScheduling):
    """Tests of a file run in one process. So do those that share what takes long to start: Spark, Kafka."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return file if file == SPARK_CLUSTER else shared_by(file) or file


@cache
def shared_by(file: str) -> str | None:
    """Kafka, Spark, or None: what tests of this file, a path from the root, share with those of others."""
    found = SHARED.search((TESTS.parent / file).read_text(encoding="utf-8"))
    return found and (found[1] or found[2])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SharedScheduling:
    """`make test` and `make quick` ask for `--dist loadfile`."""
    return SharedScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with tests that may take long begin first, then those with many tests that start something.

    So the last ones are short, and no process is left with a long one at the end.
    """
    longest: dict[Path, float] = {}
    slow: Counter[Path] = Counter()
    for item in items:
        marker = item.get_closest_marker("timeout")
        limit_s = marker.args[0] if marker is not None else 0.0
        longest[item.path] = max(longest.get(item.path, 0.0), limit_s)
        slow[item.path] += any(item.get_closest_marker(mark) is not None for mark in SLOW_MARKS)
    items.sort(key=lambda item: (-longest[item.path], -slow[item.path]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Little of what the modules make while they are loaded is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What all the modules have made stays to the end: the garbage collector need not look at it."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("pure") is not None and form() == "compiled":
        pytest.skip("it replaces code of quorumd, which is compiled here")
    for mark, missing in (("java", missing_tools), ("spark", _missing_java)):
        if item.get_closest_marker(mark) is not None and (reason := missing()):
            if os.environ.get("CI") == "true":
                pytest.fail(f"on CI the {mark} tests must run, but {reason}", pytrace=False)
            pytest.skip(reason)


@cache
def _missing_java() -> str | None:
    """Why Spark cannot start."""
    try:
        find_java()
    except JavaMissing as error:
        return str(error)
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the nodes of a live quorum have logged; a secret in what is captured is one."""
    report = yield
    try:
        canary.check("".join(text for _, text in report.sections), f"the output of {item.nodeid}")
    except AssertionError as error:
        report.outcome, report.longrepr = "failed", str(error)
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Cluster):
                report.sections.append((f"nodes of {name}", value.logs()))
    return report
