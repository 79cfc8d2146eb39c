"""Java's properties text, as far as meta.properties needs it: `key=value` lines with escapes.

Source: java.util.Properties, load and store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_TO_ESCAPE = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_KEY_END = re.compile(r"(?<!\\)(?:\\\\)*([ \t\f]*[=: \t\f][ \t\f]*)")


def parse(text: str) -> dict[str, str]:
    """The pairs, later ones winning. Raises ValueError for a broken \\u escape."""
    pairs: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _KEY_END.search(line)
        if match is None:
            pairs[_unescape(line)] = ""
            continue
        value = line[match.end(1) :]
        separator = match[1]
        if separator.isspace() and value[:1] in ("=", ":"):
            value = value[1:].lstrip(" \t\f")
        pairs[_unescape(line[: match.start(1)])] = _unescape(value)
    return pairs


def render(pairs: Mapping[str, str]) -> str:
    """One `key=value` line per pair, in the order given."""
    return "".join(f"{_escape(key, ' ')}={_escape(value, '')}\n" for key, value in pairs.items())


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    held = ""
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(" \t\f")
        if not held and (not line or line[0] in "#!"):
            continue
        held += line
        backslashes = len(held) - len(held.rstrip("\\"))
        if backslashes % 2:
            held = held[:-1]
            continue
        lines.append(held)
        held = ""
    if held:
        lines.append(held)
    return lines


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\" or at == len(text):
            parts.append(char)
            continue
        escaped = text[at]
        at += 1
        if escaped == "u":
            digits = text[at : at + 4]
            if re.fullmatch("[0-9a-fA-F]{4}", digits) is None:
                raise ValueError(f"\\u{digits} is no character")
            parts.append(chr(int(digits, 16)))
            at += 4
        else:
            parts.append(_ESCAPES.get(escaped, escaped))
    return "".join(parts)


def _escape(text: str, also: str) -> str:
    parts = []
    for at, char in enumerate(text):
        if char in _TO_ESCAPE:
            parts.append(_TO_ESCAPE[char])
        elif char in "\\:=#!" or char in also or (char == " " and at == 0):
            parts.append("\\" + char)
        elif not " " <= char <= "~":
            raw = char.encode("utf-16-be")
            parts += [f"\\u{raw[i]:02X}{raw[i + 1]:02X}" for i in range(0, len(raw), 2)]
        else:
            parts.append(char)
    return "".join(parts)
