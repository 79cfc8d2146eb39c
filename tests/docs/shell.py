"""Commands of documents, run by a shell as they are written but for what is otherwise here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

BIN = Path(sys.executable).parent


def environment() -> dict[str, str]:
    """This one, in which quorumd's programs are found."""
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def replaced(text: str, pairs: Iterable[tuple[str, str]]) -> str:
    """The text with each pattern replaced, in this order."""
    for pattern, replacement in pairs:
        text = re.sub(pattern, replacement, text)
    return text


def run_shell(
    script: str, *options: str, folder: Path, environ: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run lines of bash with these options; `stdout` has all that they print."""
    return subprocess.run(
        ["bash", *options, "-c", script],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
