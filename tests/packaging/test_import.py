"""`import quorumd` costs next to nothing; its names are those of the client, loaded when one is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import quorumd
import quorumd.client


def run(code: str) -> str:
    """What a fresh interpreter prints that runs this."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_importing_quorumd_loads_none_of_its_packages() -> None:
    code = (
        "import sys; before = set(sys.modules); import quorumd\n"
        "loaded = set(sys.modules) - before\n"
        "print(sorted(name for name in loaded if name.startswith('quorumd')))\n"
        "assert not loaded & {'asyncio', 'ssl', 'socket', 'subprocess', 'pathlib', 'importlib.metadata'}\n"
        "assert len(loaded) < 40, sorted(loaded)"
    )
    assert run(code) == "['quorumd', 'quorumd.version']"


def test_importing_quorumd_takes_next_to_no_time() -> None:
    """The best of five is the code's own; the rest waits for the machine."""
    code = (
        "import time; began = time.perf_counter(); import quorumd\n"
        "print((time.perf_counter() - began) * 1000)"
    )
    assert min(float(run(code)) for _ in range(5)) < 150, "milliseconds"


def test_the_client_loads_neither_daemon_nor_spark() -> None:
    code = (
        "import sys, quorumd; quorumd.QuorumClient\n"
        "parts = {'.'.join(name.split('.')[:2]) for name in sys.modules if name.startswith('quorumd.')}\n"
        "print(sorted(parts - {'quorumd._compiled__mypyc'}))\n"
        "print([name for name in sys.modules if name.startswith('quorumd.raft.')])\n"
        "foreign = {'construct', 'cryptography', 'numpy', 'prometheus_client', 'pyspark', 'uvloop'}\n"
        "print(sorted((foreign | {'yaml', 'click'}) & set(sys.modules)))"
    )
    assert run(code).splitlines() == [
        "['quorumd.client', 'quorumd.config', 'quorumd.raft', 'quorumd.security', 'quorumd.version', "
        "'quorumd.wire']",
        "['quorumd.raft.types']",
        "[]",
    ]


def test_a_module_of_the_client_loads_no_other_than_it_needs() -> None:
    """Each of Spark's Python workers reads the options of the data source: addresses and TLS."""
    code = (
        "import sys, quorumd.client.addresses, quorumd.client.security, quorumd.client\n"
        "hasattr(quorumd.client, '__wrapped__')\n"
        "print(sorted(name for name in sys.modules if name.startswith('quorumd.client.')))\n"
        "print(sorted({'asyncio', 'ssl'} & set(sys.modules)))\n"
        "quorumd.client.QuorumClient; print('quorumd.client.client' in sys.modules)"
    )
    assert run(code).splitlines() == [
        "['quorumd.client.addresses', 'quorumd.client.security']",
        "[]",
        "True",
    ]


def test_the_daemon_does_not_load_the_client() -> None:
    code = (
        "import sys, quorumd.server.main, quorumd.server.run\n"
        "print([name for name in sys.modules if name.startswith(('quorumd.client', 'quorumd.cli'))])"
    )
    assert run(code) == "[]"


def test_the_public_names_are_those_of_the_client_and_dir_lists_them() -> None:
    assert quorumd.__all__ == quorumd.client.__all__
    assert {*quorumd.__all__, "__version__"} == set(dir(quorumd))
    assert set(quorumd.__all__) <= set(dir(quorumd.client))
    for name in quorumd.__all__:
        assert getattr(quorumd, name) is getattr(quorumd.client, name)
    assert run("from quorumd import *; print(Record(value=b'x').value)") == "b'x'"


def test_a_name_that_is_not_there_is_an_error_that_says_so() -> None:
    with pytest.raises(AttributeError, match="module 'quorumd' has no attribute 'QuorumCleint'"):
        _ = quorumd.QuorumCleint  # type: ignore[attr-defined]  # this is what is tested
    with pytest.raises(
        AttributeError, match=r"module 'quorumd\.client' has no attribute 'QuorumCleint'"
    ):
        _ = quorumd.client.QuorumCleint  # type: ignore[attr-defined]  # this is what is tested
    # What looks for what a module may have (pickle, doctest, inspect) loads nothing by it.
    assert (
        run(
            "import sys, quorumd; hasattr(quorumd, '__wrapped__'); print('quorumd.client' in sys.modules)"
        )
        == "False"
    )
