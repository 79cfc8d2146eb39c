"""The compiled form does what the pure one does: the same simulated runs, and the same tests pass in it.

`make test-compiled` runs all tests in it; these here show that it is whole, whenever tests run.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from quorumd.version import COMPILED_GROUP, form
from tests.support.compiled import (
    compiled_modules,
    compiled_wheel,
    make_tree,
    missing_compiler,
    run_in,
)

pytestmark = [pytest.mark.compiled, pytest.mark.live, pytest.mark.sim, pytest.mark.timeout(3000)]

SEEDS = "1..12"
LIVE = (
    "tests/daemon/test_durability.py",
    "tests/daemon/test_health.py::test_status_says_which_quorumd_runs",
    "tests/daemon/test_voters.py",
)
RULES = (
    "tests/raft",
    "tests/wire/test_fast.py",
    "tests/wire/test_fast_edges.py",
    "tests/server/test_driver.py",
)
TLS = ("tests/security/test_tls_stream.py", "tests/server/test_tls_listeners.py")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if form() == "compiled":
        pytest.skip("this is the compiled form")
    if reason := missing_compiler():
        pytest.skip(reason)
    return make_tree(tmp_path_factory.mktemp("compiled") / "tree")


def test_the_wheel_has_machine_code_beside_the_sources_and_fits_this_python_only(
    tree: Path,
) -> None:
    wheel = compiled_wheel()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (about,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
        described = Parser().parsestr(archive.read(about).decode())
    library = f"{COMPILED_GROUP}__mypyc"
    made = {name.partition(".")[0].replace("/", ".") for name in names if name.endswith(".so")}
    assert {name.removesuffix(".__init__") for name in made} == {*compiled_modules(), library}
    sources = {name.removesuffix(".py").replace("/", ".") for name in names if name.endswith(".py")}
    assert made - {library} <= sources
    (tag,) = parse_wheel_filename(wheel.name)[3]
    assert tag in sys_tags()
    assert tag.abi != "none"
    assert described["Root-Is-Purelib"] == "false"


def test_all_that_is_listed_runs_as_machine_code(tree: Path) -> None:
    code = (
        "import json, sys; from importlib import import_module; from quorumd.version import form\n"
        "files = {name: import_module(name).__file__ for name in sys.argv[1:]}\n"
        "print(json.dumps([form(), files]))"
    )
    done = run_in(tree, "-c", code, *compiled_modules(), timeout_s=60)
    assert done.returncode == 0, done.stderr
    said, files = json.loads(done.stdout)
    assert said == "compiled"
    assert all(file.startswith(str(tree)) and file.endswith(".so") for file in files.values()), (
        files
    )
    done = run_in(tree, "-m", "quorumd.server.main", "--version", timeout_s=60)
    assert "(compiled, commit unknown)" in done.stdout, done.stderr


def test_a_simulated_run_is_the_same_event_for_event_and_byte_for_byte(tree: Path) -> None:
    prints = []
    for place in (Path(), tree):
        done = run_in(place.resolve(), "-m", "simulation.same", "--seeds", SEEDS, timeout_s=1200)
        assert done.returncode == 0, done.stderr
        prints.append(json.loads(done.stdout))
    pure, compiled = prints
    assert len([name for name in pure if name.startswith("seed ")]) == 12
    assert [name for name in pure if pure[name] != compiled.get(name)] == []


def test_the_rules_and_a_live_quorum_pass_their_tests(tree: Path) -> None:
    asked = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *RULES, *LIVE, *TLS)
    done = run_in(tree, *asked, timeout_s=1200)
    assert done.returncode == 0, done.stdout[-5000:]


def test_an_assertion_holds_and_a_traceback_names_file_and_line(tree: Path) -> None:
    code = (
        "from quorumd.server.net.inbound_request import InboundRequest\n"
        "class Connection:\n"
        "    in_flight_bytes = 0\n"
        "    def send(self, *_): pass\n"
        "request = InboundRequest(Connection(), 0, 0, 0, b'', 0, 0)\n"
        "request.finish_without_response(); request.finish_without_response()"
    )
    done = run_in(tree, "-c", code, timeout_s=60)
    assert "AssertionError: a request gets one response" in done.stderr
    assert 'inbound_request.py", line' in done.stderr
    assert "in finish_without_response" in done.stderr
