"""Builds the distributions from what the Dockerfile copies, and installs one beside nothing of ours.

Nothing is downloaded: an installation sees what this Python has of the packages that the wheel's metadata
asks for, and no other.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
REVISION = "0123456789abcdef0123456789abcdef01234567"
BUILD_S = 120
COMPILE_S = 900
_OURS = re.compile("PYTHON|QUORUM")


def copy_sources(target: Path) -> Path:
    """What the stage `build` of the Dockerfile copies to /source, links as links; no git, no tests."""
    text = (ROOT / "Dockerfile").read_text()
    for names, folder in re.findall(r"^COPY (?!--from)(.+) /source/(\S*)$", text, re.MULTILINE):
        for name in names.split():
            if (ROOT / name).is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "*.so")
                shutil.copytree(ROOT / name, target / folder, symlinks=True, ignore=ignore)
            else:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, target)
    return target


def build(source: Path, target: Path, kind: str, revision: str = "") -> Path:
    """What pip does without build isolation: `kind` is wheel, compiled wheel or sdist."""
    target.mkdir(parents=True, exist_ok=True)
    form, _, kind = kind.rpartition(" ")
    code = f"import sys; from setuptools.build_meta import *; build_{kind}(sys.argv[1])"
    variables = {"QUORUMD_REVISION": revision, "QUORUMD_COMPILE": "1" if form else ""}
    variables["QUORUMD_OPT_LEVEL"] = "0"  # less of the compiler's time, and the same behaviour
    run(
        [sys.executable, "-c", code, str(target)], source, variables, COMPILE_S if form else BUILD_S
    )
    (built,) = target.iterdir()
    return built


def unpacked(sdist: Path, target: Path) -> Path:
    """The one folder that is in the archive."""
    with tarfile.open(sdist) as archive:
        # Python 3.11.2, which Debian has, knows no filters yet.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(target)
    (folder,) = target.iterdir()
    return folder


def contents(wheel: Path) -> dict[str, bytes]:
    """Every file of a wheel, by its path in it."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


class Installation:
    """A virtual environment with a distribution and what it needs; its programs run in `folder`."""

    def __init__(self, place: Path, built: Path, folder: Path, *, extra: str = "") -> None:
        self._bin = place / "bin"
        self._folder = folder
        run([sys.executable, "-m", "venv", "--without-pip", str(place)], place.parent)
        pip = [sys.executable, "-m", "pip", "--python", str(self._bin / "python"), "install", "-q"]
        (self.site,) = place.glob("lib/python*/site-packages")
        linked: set[str] = set()
        if built.suffix != ".whl":
            # pip builds it there, with the setuptools of this Python: isolated, it would download one.
            _link_distributions(["setuptools"], "", self.site, linked)
            pip.append("--no-build-isolation")
        run([*pip, "--no-index", "--no-deps", "--no-compile", str(built)], place.parent)
        (metadata,) = self.site.glob("quorumd-*.dist-info/METADATA")
        needed = Parser().parsestr(metadata.read_text()).get_all("Requires-Dist", [])
        _link_distributions(needed, extra, self.site, linked)

    def run(self, program: str, *arguments: object, timeout_s: float = 60) -> str:
        """What a program of the installation prints; AssertionError with all of it if it fails."""
        command = [str(self._bin / program), *map(str, arguments)]
        return run(command, self._folder, {"PATH": f"{self._bin}:{os.environ['PATH']}"}, timeout_s)


def run(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 60,
) -> str:
    """What the command prints; AssertionError with all of it if it fails. PYTHON* stay behind."""
    environ = {name: value for name, value in os.environ.items() if not _OURS.match(name)}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environ, **(variables or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _link_distributions(lines: Iterable[str], extra: str, site: Path, seen: set[str]) -> None:
    """Makes these requirements, and what they need, importable from `site`, as they are installed here."""
    for requirement in map(Requirement, lines):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        if (name := canonicalize_name(requirement.name)) in seen:
            continue
        seen.add(name)
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(found.locate_file(top)))
        _link_distributions(found.requires or (), "", site, seen)
