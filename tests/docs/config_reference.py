"""The example file of the configuration and the table in docs/operations.md, made from the declared keys.

`python -m tests.docs.config_reference --write` writes both; without `--write` the example is printed.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from quorumd.config.declaration import Key
from quorumd.config.keys import KEYS
from quorumd.config.values import Limit, WholeNumber

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "config" / "controller.example.yaml"
DOCUMENT = ROOT / "docs" / "operations.md"
BEGIN = "<!-- keys: made by python -m tests.docs.config_reference --write -->\n"
END = "<!-- end of keys -->\n"
WIDTH = 100

HEADER = """\
# A quorumd node: every key, with its default where it has one. Lines that begin with '#' show
# defaults; the others have to be set. Each key may also come from the environment, which wins:
# QUORUMD_ and the key in upper case with '_' for '.', such as QUORUMD_NODE_ID. A variable that is
# set to nothing counts as not set. Where variables set everything, no file is needed.
#
# In this file ${env:NAME} stands for a variable, ${dir:PATH:NAME} for the file NAME in a folder. Files
# and folders begin at the folder of this file.
#
# Times are milliseconds, sizes are bytes. Lists are text with commas or a YAML list.
"""


def example() -> str:
    """controller.example.yaml."""
    return HEADER + "".join(map(_paragraph, KEYS.values()))


def table() -> str:
    """The table of the keys, in Markdown."""
    rows = [
        f"| `{key.name}` | {_default(key)} | {_permitted(key)} | {key.doc} |"
        for key in KEYS.values()
    ]
    return "\n".join(["| key | default | permitted | meaning |", "|---|---|---|---|", *rows, ""])


def parts_of(document: str) -> tuple[str, str, str]:
    """What stands before the table, the table, and what stands after it."""
    before, _, rest = document.partition(BEGIN)
    found, _, after = rest.partition(END)
    return before, found, after


def _paragraph(key: Key) -> str:
    """A key of the example: heading, comment, and the line that sets it."""
    # A link leads nowhere in this file.
    text = re.sub(r"\[([^]]+)]\([^)]+\)", r"\1", key.doc)
    if key.default_text:
        text += f" Default: {key.default_text}."
    if permitted := _permitted(key):
        text += f" Permitted: {permitted}."
    comment = textwrap.fill(
        text,
        WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    heading = f"\n# --- {key.section} ".ljust(WIDTH + 1, "-") + "\n" if key.section else ""
    is_set = key.required or key.is_in_example
    setting = f"{'' if is_set else '#'}{key.name}: {key.example or _default(key)}"
    return f"{heading}\n{comment}\n{setting}\n"


def _default(key: Key) -> str:
    if key.required:
        return "required"
    if key.default_text:
        return key.default_text
    if key.default is None:
        return "-1"
    return str(key.default).lower() if isinstance(key.default, bool) else str(key.default)


def _permitted(key: Key) -> str:
    if not isinstance(key.parse, (WholeNumber, Limit)):
        return ""
    return f"{key.parse.low} to {key.parse.high}{', or -1' if isinstance(key.parse, Limit) else ''}"


def _write() -> None:
    EXAMPLE.write_text(example(), encoding="utf-8")
    before, _, after = parts_of(DOCUMENT.read_text(encoding="utf-8"))
    DOCUMENT.write_text(f"{before}{BEGIN}{table()}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        _write()
    else:
        sys.stdout.write(example())
