"""Writes the commit into what is built, for `--version`. Everything else is in pyproject.toml.

The commit is that of the variable QUORUMD_REVISION (as in the Dockerfile, which has no .git), of the file
that an sdist brings, or of git; where nobody knows, none is written.
"""

from __future__ import annotations

import os
import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

VERSION = runpy.run_path(str(Path(__file__).parent / "quorumd" / "version.py"))


def write_revision(root: Path) -> None:
    revision = os.environ.get("QUORUMD_REVISION", "").strip() or VERSION["revision"]()
    if revision != VERSION["UNKNOWN"]:
        (root / "quorumd" / VERSION["REVISION_FILE"]).write_text(f"{revision}\n", encoding="ascii")


class BuildWithRevision(build_py):
    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        # setuptools would publish what an earlier build has left there: modules that are gone since.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        write_revision(Path(self.build_lib))


class SdistWithRevision(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_revision(Path(base_dir))


setup(cmdclass={"build_py": BuildWithRevision, "sdist": SdistWithRevision})
