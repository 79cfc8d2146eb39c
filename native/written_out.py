"""Statements of a module that are written in another way: `written_out`."""

from __future__ import annotations

import ast
from collections.abc import Iterable

_FUTURE = "from __future__ import annotations"


def written_out(source: str, changes: Iterable[tuple[ast.stmt, str]], names: str) -> str:
    """The module with a text of one line in place of each statement, and `names` of `librt.strings` for them.

    Lines keep their numbers. The same module if there is no change.
    """
    lines = source.split("\n")
    changed = False
    for node, text in changes:
        begin, end = node.lineno - 1, node.end_lineno or 0
        lines[begin:end] = [" " * node.col_offset + text] + [""] * (end - begin - 1)
        changed = True
    imports = f"{_FUTURE}; from librt.strings import {names}"
    return "\n".join(lines).replace(_FUTURE, imports, 1) if changed else source
