"""The copy of the sources that mypyc compiles: what it makes slow code of is written in another way there."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from native.constructors import with_constructors
from native.packs import with_packs
from native.reads import with_reads


def write_sources(package: Path, target: Path, modules: Iterable[str]) -> None:
    """Copy a package into `target`, with changes in `modules`, which are paths below `target`."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(package, target / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in modules:
        path = target / name
        source = with_constructors(path.read_text("utf-8"))
        path.write_text(with_packs(with_reads(source)), "utf-8")
