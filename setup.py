"""Writes the commit into what is built, for `--version`, and its description; compiles if asked to.
pyproject.toml has the rest.

The commit is that of the variable QUORUMD_REVISION (as in the Dockerfile, which has no .git), of the file
that an sdist brings, or of git; where nobody knows, none is written.

With QUORUMD_COMPILE=1 a wheel holds machine code of the modules in `[tool.quorumd]`, beside their sources.
That needs a C compiler, Python's headers and mypy; with QUORUMD_OPT_LEVEL=0, for tests, less time. An
sdist or an editable installation is always pure: an edited source that has a compiled module beside it has no
effect.
"""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import shutil
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

if TYPE_CHECKING:
    from setuptools import Extension

ROOT = Path(__file__).parent
VERSION = runpy.run_path(str(ROOT / "quorumd" / "version.py"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
OPTIONS = ["--config-file=", "--ignore-missing-imports"]
"""`make check` has the strict ones; a build need not have the stubs of what quorumd uses."""


def compiler() -> list[str]:
    """The release of mypy, and mypyc in it, that the tests run with: another one would make other code."""
    return [
        it for it in PROJECT["project"]["optional-dependencies"]["dev"] if it.startswith("mypy==")
    ]


def is_compiled() -> bool:
    return os.environ.get("QUORUMD_COMPILE", "") == "1"


def compiled_modules() -> list[Extension]:
    """Extensions of mypyc for the sources, with one library that holds them all; none if not asked for."""
    if not is_compiled() or "bdist_wheel" not in sys.argv:
        return []
    from mypyc.build import mypycify

    sys.path.insert(0, str(ROOT))
    from native.sources import write_sources

    settings = PROJECT["tool"]["quorumd"]
    left_out = set(settings["not-compiled"])
    found = {path for pattern in settings["compiled"] for path in Path().glob(pattern)}
    modules = sorted(str(path) for path in found if str(path) not in left_out)
    build = Path("build").absolute()
    write_sources(Path("quorumd"), build / "sources", modules)
    # Above -O1 it grows and takes twice as long, and is not faster. No debug information: 3 of 4 bytes.
    with contextlib.chdir(build / "sources"):
        extensions: list[Extension] = mypycify(
            [*OPTIONS, *modules],
            opt_level=os.environ.get("QUORUMD_OPT_LEVEL", "1"),
            debug_level="0",
            group_name=VERSION["COMPILED_GROUP"],
            target_dir=str(build / "mypyc"),
        )
    for extension in extensions:
        # To look for what it might warn of takes gcc a hundred seconds for this C; nobody wrote it.
        extension.extra_compile_args.append("-Wno-all")
    return extensions


def package_page() -> str:
    """README.md for a page that no files lie beside: links to them, and pictures, become their paths."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"!?\[([^]]+)\]\((?!https?:)([^)]+)\)", _path_in_words, text)
    return f"{text}\nPaths are those of the sources.\n"


def _path_in_words(link: re.Match[str]) -> str:
    label, path = link.groups()
    return f"`{path}`" if label in path else f"{label} (`{path}`)"


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


setup(
    cmdclass={"build_py": BuildWithRevision, "sdist": SdistWithRevision},
    ext_modules=compiled_modules(),
    long_description=package_page(),
    long_description_content_type="text/markdown",
    # Asked for by pip, with build isolation, before it builds a wheel.
    setup_requires=compiler() if is_compiled() else [],
)
