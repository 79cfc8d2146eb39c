"""Passwords and private keys: texts that no log line, error or traceback shows."""

from __future__ import annotations


class Secret:
    """A text that is never shown; `reveal` returns it to the code that uses it.

    It is no dataclass: `dataclasses.asdict` would show what is in it.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "[hidden]"
