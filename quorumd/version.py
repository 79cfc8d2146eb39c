"""Version of this quorumd, and the commit that it was made from.

The version is written here and nowhere else: pyproject.toml reads it from this file, without importing it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

VERSION: Final = "0.1.0"
UNKNOWN: Final = "unknown"
REVISION_FILE: Final = "revision.txt"
"""Beside this module in what was built: the commit, written by setup.py."""

COMPILED_GROUP: Final = "quorumd._compiled"
"""setup.py's name for the modules that are compiled together: the library of them all is named after it."""

_GIT_TIMEOUT_S: Final = 5.0


def revision() -> str:
    """The commit: that of the build, in a checkout git's own, or "unknown".

    Ends in `-dirty` where files of a checkout differ from the commit.
    """
    # Not above: every program that imports quorumd would pay for it.
    from pathlib import Path

    folder = Path(__file__).parent
    try:
        return (folder / REVISION_FILE).read_text(encoding="ascii").strip() or UNKNOWN
    except OSError:
        # A zip on Python's path ends here too: it is no folder.
        return _revision_of_checkout(folder.parent)


def form() -> str:
    """ "compiled" where the rules and the hot paths run as machine code, "pure" where all is Python."""
    from importlib.util import find_spec

    return "pure" if find_spec(f"{COMPILED_GROUP}__mypyc") is None else "compiled"


def version_and_revision() -> str:
    """For people: `0.1.0 (pure, commit 3f2a...)`. In a checkout it runs git, which takes a moment."""
    return f"{VERSION} ({form()}, commit {revision()})"


def _revision_of_checkout(root: Path) -> str:
    """Of the folder that is itself a checkout, not of one that lies somewhere in it."""
    if not (root / ".git").exists():
        return UNKNOWN
    import subprocess

    command = ["git", "-C", str(root), "describe"]
    # Without tags: the commit itself, all of it.
    command += ["--always", "--exclude=*", "--abbrev=40", "--dirty"]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="ascii", timeout=_GIT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return done.stdout.strip()
