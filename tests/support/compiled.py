"""The compiled form of this checkout, in a copy of it: nothing is compiled beside the sources themselves.

There an edited source would have no effect. Machine code is kept in `.cache/compiled` for as long as what
it is made from stays the same. `python -m tests.support.compiled DIR` makes the copy DIR, in which
everything runs as in a checkout, with PYTHONPATH=DIR.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path

from tests.packaging.built import ROOT, build, copy_sources

CACHE = ROOT / ".cache" / "compiled"
LINKED = ("config", "raft", "security", "server", "storage", "wire")
"""Folders at the top that are parts of the package by links."""
KEPT_MAX = 3
_NOT_COPIED = shutil.ignore_patterns(
    ".git",
    ".venv",
    ".cache",
    "__pycache__",
    "*.egg-info",
    "build",
    ".*_cache",
    ".hypothesis",
    "demo-data",
)


def missing_compiler() -> str | None:
    """Why nothing can be compiled here."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"no C compiler: {compiler} is missing (Debian: apt install gcc libc6-dev)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python.h is missing (Debian: apt install python3-dev)"
    return None


def compiled_modules() -> list[str]:
    """Dotted names of the modules that a compiled wheel has as machine code, as pyproject.toml lists them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["quorumd"]
    found = {path for pattern in settings["compiled"] for path in ROOT.glob(pattern)}
    found -= {ROOT / path for path in settings["not-compiled"]}
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found)
    return sorted(name.removesuffix(".__init__") for name in names)


def compiled_wheel() -> Path:
    """A compiled wheel. Its machine code is of now; what is not compiled in it may be of another commit."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = CACHE / _digest()
        if not kept.exists():
            for old in sorted(CACHE.glob("*/*.whl"), key=os.path.getmtime)[: -KEPT_MAX + 1]:
                shutil.rmtree(old.parent)
            with tempfile.TemporaryDirectory(dir=CACHE, prefix="building-") as folder:
                made = build(
                    copy_sources(Path(folder, "source")), Path(folder, "made"), "compiled wheel"
                )
                made.parent.rename(kept)
        (wheel,) = kept.iterdir()
        return wheel


def make_tree(target: Path) -> Path:
    """A copy of the checkout, without its history, in which quorumd is compiled."""
    shutil.copytree(ROOT, target, symlinks=True, ignore=_NOT_COPIED)
    (target / ".cache").mkdir()
    for kept in (ROOT / ".cache").iterdir():
        (target / ".cache" / kept.name).symlink_to(kept)
    with zipfile.ZipFile(compiled_wheel()) as wheel:
        for name in wheel.namelist():
            if name.endswith(".so"):
                (target / name).write_bytes(wheel.read(name))
    return target


def run_in(tree: Path, *arguments: object, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Python in a tree that `make_tree` made."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _digest() -> str:
    """Of all that machine code is made from."""
    hashed = blake2b(
        f"{sys.version} {sysconfig.get_platform()} {version('mypy')}".encode(), digest_size=10
    )
    files = [ROOT / name for name in ("pyproject.toml", "setup.py", "quorumd/version.py")]
    for folder in ("native", *LINKED):
        files += sorted((ROOT / folder).rglob("*.py"))
    for file in files:
        hashed.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return hashed.hexdigest()


if __name__ == "__main__":
    if reason := missing_compiler():
        raise SystemExit(reason)
    folder = Path(sys.argv[1]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    make_tree(folder)
