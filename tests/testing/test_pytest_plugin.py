"""The fixtures, in runs of pytest of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN_S = 100
TESTS = """
import asyncio
import quorumd
from quorumd.testing import LocalQuorum
import pytest


async def write(quorum, value):
    async with quorumd.QuorumClient(quorum.servers) as client:
        (offset,) = await client.append([quorumd.Record(key=quorum.key("color"), value=value)])
        assert offset >= quorum.begin_offset
        async with quorumd.KeyValueView(client) as view:
            return {key: view.get(key).value for key in (quorum.key("color"),)}


@pytest.mark.parametrize("value", [b"red", b"blue"])
def test_own_keys(quorum, value):
    assert quorum.key("color") == quorum.prefix.encode() + b"color"
    assert asyncio.run(write(quorum, value)) == {quorum.key("color"): value}
    print("servers", quorum.servers)


def test_not_to_be_hurt(quorum):
    with pytest.raises(AttributeError, match="`own_quorum` has it, and is this test's alone"):
        quorum.kill_leader()
    with pytest.raises(AttributeError, match="has no attribute 'kil_leader'"):
        quorum.kil_leader()


def test_to_be_hurt(own_quorum):
    assert isinstance(own_quorum, LocalQuorum)
    killed = own_quorum.kill_leader()
    assert own_quorum.leader() != killed


def test_that_fails(own_quorum, quorum):
    assert own_quorum.servers != quorum.servers
    assert not "fails"
"""


def run_pytest(folder: Path, *options: str) -> str:
    """What a run in this folder prints, with the plugin of this tree, installed or not."""
    without = ["-p", "no:quorumd", "-p", "no:randomly", "-p", "no:cacheprovider", "-W", "error"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "quorumd.pytest_plugin", *without, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
    )
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_quorum.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_fixtures_give_a_shared_quorum_and_an_own_one(folder: Path) -> None:
    said = run_pytest(folder, "-rP")
    assert "1 failed, 4 passed" in said, said
    assert len(set(re.findall(r"^servers (.+)$", said, re.MULTILINE))) == 1
    for name in ("own_quorum", "quorum"):
        assert f"quorumd nodes of {name} " in said, said
    assert 'reason="a majority voted"' in said


def test_each_worker_of_xdist_has_a_quorum_of_its_own(folder: Path) -> None:
    said = run_pytest(folder, "-n", "2", "--dist", "each", "-k", "own_keys", "-rP")
    assert "4 passed" in said, said
    assert len(set(re.findall(r"^servers (.+)$", said, re.MULTILINE))) == 2


def test_who_does_not_use_it_loads_next_to_nothing() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import quorumd.pytest_plugin\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['quorumd', 'quorumd.pytest_plugin', 'quorumd.version']"


def test_a_quorum_for_tests_loads_neither_the_client_nor_the_daemon() -> None:
    code = (
        "import sys, quorumd.testing\n"
        "parts = {'.'.join(name.split('.')[:2]) for name in sys.modules if name.startswith('quorumd.')}\n"
        "print(sorted(parts))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['quorumd.testing', 'quorumd.version']"
