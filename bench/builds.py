"""Builds of quorumd to be measured: this tree, a commit, another folder, or what a Python has installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.common import ROOT

_DESCRIBE = """
import pathlib, platform
try:
    from quorumd.raft import node
except ImportError:  # trees from before the folders were linked into one package
    from raft import node
print("pure" if node.__file__.endswith(".py") else "compiled", platform.python_version())
"""
_REVISION = "from quorumd.version import revision; print(revision())"


class Build(NamedTuple):
    """An installed build of quorumd, and the command that starts its nodes."""

    name: str
    """The commit (with `-dirty` where files differ from it), or the path that was given.

    What a Python has installed knows its commit.
    """
    command: list[str]
    environ: Mapping[str, str]
    form: str
    """`pure` or `compiled`."""
    python_version: str


@contextmanager
def build(where: str = "") -> Iterator[Build]:
    """`where` is a commit, a folder with sources, or a Python that has quorumd installed.

    An empty one is this tree. A commit is checked out into a folder that is removed at the end.
    """
    path = Path(where)
    if not where:
        changed = "-dirty" if _git("status", "--porcelain", "--untracked-files=no") else ""
        yield _of_tree(ROOT, _revision("HEAD") + changed)
    elif path.is_dir():
        yield _of_tree(path.resolve(), where)
    elif path.is_file():
        python = str(path.absolute())
        # Modules of the caller's PYTHONPATH would come before those that are installed there.
        built = _described(where, python, "quorumd.server.main", {"PYTHONPATH": ""})
        commit = _output([python, "-c", _REVISION], built.environ, where)
        yield built._replace(name=where if commit == "unknown" else _short(commit))
    else:
        with tempfile.TemporaryDirectory(prefix="quorumd-tree-") as folder:
            name = _revision(where)
            archive = Path(folder) / "archive.tar"
            _git("archive", "--output", str(archive), name)
            tree = Path(folder) / "tree"
            tree.mkdir()
            subprocess.run(["tar", "-x", "-f", str(archive), "-C", str(tree)], check=True)
            yield _of_tree(tree, name)


def _of_tree(tree: Path, name: str) -> Build:
    linked = (tree / "quorumd" / "server").exists()
    module = "quorumd.server.main" if linked else "server.main"
    return _described(name, sys.executable, module, {"PYTHONPATH": str(tree)})


def _described(name: str, python: str, module: str, environ: Mapping[str, str]) -> Build:
    environ = {**environ, "PYTHONSAFEPATH": "1"}  # the working directory is no source of modules
    form, version = _output([python, "-c", _DESCRIBE], environ, name).split()
    return Build(name, [python, "-m", module], environ, form, version)


def _output(command: list[str], environ: Mapping[str, str], name: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name} has no quorumd that can be imported: {done.stderr.strip()}")
    return done.stdout.strip()


def _short(commit: str) -> str:
    """Seven digits, and the mark of changed files."""
    digits, dash, mark = commit.partition("-")
    return digits[:7] + dash + mark


def _revision(commit: str) -> str:
    return _git("rev-parse", "--short=7", "--verify", f"{commit}^{{commit}}").strip()


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout
