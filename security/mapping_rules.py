"""`ssl.principal.mapping.rules`: how the subject of a certificate becomes a user's name.

As in Kafka (`SslPrincipalMapper`, KIP-371): `DEFAULT`, or `RULE:pattern/replacement/` with L or U behind it
for lower and upper case, separated by commas; the first rule whose pattern fits the whole name counts.
Refused where Kafka would take them: what `bounded_pattern` does not support, references to groups that are
not there (Kafka fails at each connection, or takes some for text), and names with a line end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from quorumd.security.bounded_pattern import (
    LINE_ENDS,
    BadPattern,
    BoundedPattern,
    TooManySteps,
)
from quorumd.security.errors import CertificateProblem, HandshakeOutcome

NAME_LENGTH_MAX: Final = 4_096
_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)\s*(?:,|\Z)", re.DOTALL)
_DEFAULT: Final = re.compile(r"DEFAULT\s*(?:,|\Z)")
_NOTHING: Final = re.compile(r"\s*(?:,|\Z)")
_BLANKS: Final = re.compile(r"\s*")


class BadRule(ValueError):
    """Rules that cannot be read; the message says what is permitted."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """One rule; a pattern of None takes the name as it is."""

    pattern: BoundedPattern | None
    replacement: tuple[str | int, ...]
    """Texts, and numbers of groups; 0 is all that has matched."""
    case: str

    def apply(self, name: str) -> str | None:
        """The user's name, or None if the pattern does not fit. Raises TooManySteps."""
        if self.pattern is None:
            return name
        if self.pattern.match_all(name) is None:
            return None
        # Kafka replaces all that is found, which need not be the whole, though it has to fit.
        parts: list[str] = []
        done = 0
        for spans in self.pattern.find_each(name):
            parts.append(name[done : spans[0]])
            for each in self.replacement:
                text = each if isinstance(each, str) else _group_of(name, spans, each)
                parts.append(text)
            done = spans[1]
        text = "".join((*parts, name[done:]))
        return {"L": text.lower, "U": text.upper}.get(self.case, text.__str__)()


def _group_of(name: str, spans: Sequence[int], group: int) -> str:
    """Text that a group has matched; "" if it took no part, and begins and ends at -1."""
    begin, end = spans[2 * group : 2 * group + 2]
    return name[begin:end]


class MappingRules:
    """Rules in their order."""

    def __init__(self, text: str) -> None:
        """Raises BadRule."""
        self._rules = _parsed(text)

    def user_of(self, name: str) -> str:
        """The user's name for the subject of a certificate. Raises CertificateProblem if no rule fits."""
        if all(rule.pattern is None for rule in self._rules):
            return name
        if len(name) > NAME_LENGTH_MAX or not LINE_ENDS.isdisjoint(name):
            return _refuse(name, "is too long for ssl.principal.mapping.rules, or has a line end")
        try:
            for rule in self._rules:
                user = rule.apply(name)
                if user is not None:
                    return user
        except TooManySteps:
            return _refuse(name, "takes ssl.principal.mapping.rules too long")
        return _refuse(
            name, "fits none of ssl.principal.mapping.rules: add a rule for it, or DEFAULT"
        )


@lru_cache(maxsize=64)
def rules_of(text: str) -> MappingRules:
    """The rules that are written so. Raises BadRule."""
    return MappingRules(text)


def _refuse(name: str, why: str) -> str:
    shown = name if len(name) <= 200 else name[:197] + "..."
    raise CertificateProblem(
        f"the name of its certificate, {shown!r}, {why}", HandshakeOutcome.PRINCIPAL
    )


def _parsed(text: str) -> tuple[_Rule, ...]:
    rules: list[_Rule] = []
    at = 0
    while at < len(text):
        at = _end(_BLANKS.match(text, at))
        if match := _NOTHING.match(text, at):
            pass
        elif match := _DEFAULT.match(text, at):
            rules.append(_Rule(None, (), ""))
        elif match := _RULE.match(text, at):
            rules.append(_rule(match[1], match[2], match[3]))
        else:
            raise BadRule(
                f"{text[at : at + 60]!r} is no rule: permitted are DEFAULT and RULE:pattern/replacement/ "
                "with L, U or nothing behind it, separated by commas; '/' within a part is written '\\/'"
            )
        at = _end(match)
    if not rules:
        raise BadRule("there is no rule: write DEFAULT for the name as it is")
    return tuple(rules)


def _end(match: re.Match[str] | None) -> int:
    assert match is not None, "it may match nothing"
    return match.end()


def _rule(pattern: str, replacement: str, case: str) -> _Rule:
    try:
        compiled = BoundedPattern(pattern)
    except BadPattern as error:
        raise BadRule(f"the pattern {error}") from None
    except RecursionError:
        raise BadRule("a pattern has too many groups in groups") from None
    return _Rule(compiled, tuple(_replacement(replacement, compiled.groups)), case)


def _replacement(text: str, groups: int) -> list[str | int]:
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        character, at = text[at], at + 1
        if character == "\\":
            # The rule's own form makes sure that a character follows.
            parts.append(text[at])
            at += 1
        elif character != "$":
            parts.append(character)
        else:
            number, at = _group(text, at, groups)
            parts.append(number)
    return parts


def _group(text: str, at: int, groups: int) -> tuple[int, int]:
    """The number of a group, and where it ends: as many digits as make a group that is there."""
    digits = text[at : at + 1]
    if not (digits.isascii() and digits.isdigit()) or int(digits) > groups:
        raise BadRule(
            f"the replacement {text!r} refers to a group that its pattern does not have: there are $0 to "
            f"${groups}; write '\\$' for the character"
        )
    while (more := text[at : at + len(digits) + 1]) != digits:
        if not (more.isascii() and more.isdigit()) or int(more) > groups:
            break
        digits = more
    return int(digits), at + len(digits)
