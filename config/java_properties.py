"""Java's properties text: `key=value` lines with escapes.

Source: java.util.Properties, load and store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_TO_ESCAPE = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_NATURAL_LINE = re.compile(r"[ \t\f]*([^\r\n]*)(\r\n|\r|\n|$)")
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
    """Lines without comments, those that end in a backslash with what follows, as Java joins them.

    So does it at the end of the text, where "\\" and a line feed are a key without a text, and "\\" and a
    carriage return with a line feed are none.
    """
    lines: list[str] = []
    held = ""
    at = 0
    while at < len(text):
        match = _NATURAL_LINE.match(text, at)
        assert match is not None
        line, end = match.groups()
        at = match.end()
        if not held and (not line or line[0] in "#!"):
            continue
        held += line
        if (len(held) - len(held.rstrip("\\"))) % 2:
            held = held[:-1]
            if end == "\r\n" or at < len(text):
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
    # Two escapes may be the halves of one character.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


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
