"""Writes configuration files for the tests of `config`, and reads what a refusal says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quorumd.config.load import ConfigError, load

GOOD = {
    "node.id": "1",
    "storage.dir": "/var/lib/quorumd",
    "listeners": "CONTROLLER://db1:9093",
    "quorum.voters": "1@db1:9093,2@db2:9093,3@db3:9093",
}

Write = Callable[..., Path]


def writer_into(tmp_path: Path) -> Write:
    """Writes controller.yaml: the good lines, with changes by key, and raw lines after them."""

    def write_file(changes: dict[str, str | None] | None = None, extra: str = "") -> Path:
        lines = {**GOOD, **(changes or {})}
        text = "".join(f"{key}: {value}\n" for key, value in lines.items() if value is not None)
        path = tmp_path / "controller.yaml"
        path.write_text(text + extra)
        return path

    return write_file


def refused(path: Path | None, environ: dict[str, str] | None = None) -> list[str]:
    """The problems that a refusal lists, with the folder left out of their places."""
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {})
    for problem in caught.value.problems:
        assert str(problem) in str(caught.value)
    folder = "" if path is None else f"{path.parent}/"
    return [str(problem).replace(folder, "") for problem in caught.value.problems]
