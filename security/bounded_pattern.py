"""Regular expressions in Java's syntax that end, whatever the text: no step is made twice.

Python's `re` and Java's go back and try again, which for `(a+)+$` takes ages, and in Python with the lock of
the interpreter held: a certificate could stop a node. Here each place of the expression is tried at each
place of the text once, in the order in which Java tries them, so that the outcome is Java's. What has another
meaning in Java than here, and what needs to go back (back references, lookaround), is refused by name.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

INSTRUCTIONS_MAX: Final = 2_000
STEPS_MAX: Final = 300_000
"""Of one use: a tenth of a second or two, in which other threads run."""
_REPEATS_MAX: Final = 1_000
LINE_ENDS: Final = frozenset("\n\r\u0085\u2028\u2029")
_DIGITS: Final = frozenset(string.digits)
_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_BLANKS: Final = frozenset(" \t\n\x0b\f\r")
_CLASSES: Final = {"d": _DIGITS, "w": _WORD, "s": _BLANKS}

_Test = Callable[[str], bool]
_Spans = tuple[int, ...]
"""Begin and end of each group; -1 where it took no part."""


class BadPattern(ValueError):
    """An expression that cannot be read, or that Java reads in another way; says what to write."""


class TooManySteps(Exception):
    """A text that takes too long."""


@dataclass(slots=True)
class _Step:
    """One instruction: takes a character, marks a border of a group, or goes on elsewhere."""

    test: _Test | None = None
    group: int = -1
    ways: tuple[int, ...] = ()
    """States to go on with, the preferred one first."""
    anchor: str = ""


@dataclass(slots=True)
class _Node:
    """A part of an expression: writes its steps behind those that are there."""

    write: Callable[[list[_Step]], None]
    may_be_empty: bool
    is_anchor: bool = False


def _is_of(characters: frozenset[str], *, negated: bool = False) -> _Test:
    if negated:
        return lambda character: character not in characters
    return characters.__contains__


class BoundedPattern:
    """One expression."""

    def __init__(self, text: str) -> None:
        """Raises BadPattern."""
        reader = _Reader(text)
        node = reader.alternatives()
        if not reader.is_at_end:
            reader.fail("has a ')' without its '('")
        self._steps: list[_Step] = []
        node.write(self._steps)
        self._steps.append(_Step())
        self.groups = reader.groups

    def match_all(self, text: str) -> _Spans | None:
        """Spans of the whole and of each group if the whole text fits. Raises TooManySteps."""
        return self._run(text, 0, [STEPS_MAX], is_whole=True)

    def find_each(self, text: str) -> Iterator[_Spans]:
        """One match behind another, as Java finds them. Raises TooManySteps."""
        budget = [STEPS_MAX]
        begin = 0
        while begin <= len(text):
            # A part that did not fit from one place on does not fit there for a later begin, either.
            tried: set[int] = set()
            for start in range(begin, len(text) + 1):
                spans = self._run(text, start, budget, is_whole=False, tried=tried)
                if spans is not None:
                    break
            else:
                return
            yield spans
            begin = spans[1] + (spans[0] == spans[1])

    def _run(
        self,
        text: str,
        start: int,
        budget: list[int],
        *,
        is_whole: bool,
        tried: set[int] | None = None,
    ) -> _Spans | None:
        tried = set() if tried is None else tried
        end, width = len(self._steps) - 1, len(text) + 1
        todo: list[tuple[int, int, _Spans]] = [(0, start, (-1, -1) * self.groups)]
        while todo:
            place, at, spans = todo.pop()
            if place * width + at in tried:
                continue
            tried.add(place * width + at)
            budget[0] -= 1
            if budget[0] < 0:
                raise TooManySteps
            if place == end:
                if not is_whole or at == len(text):
                    return (start, at, *spans)
                continue
            step = self._steps[place]
            if step.test is not None:
                if at < len(text) and step.test(text[at]):
                    todo.append((place + 1, at + 1, spans))
            elif step.group >= 0:
                changed = (*spans[: step.group], at, *spans[step.group + 1 :])
                todo.append((place + 1, at, changed))
            elif step.anchor:
                if at == (0 if step.anchor == "^" else len(text)):
                    todo.append((place + 1, at, spans))
            else:
                todo.extend((way, at, spans) for way in reversed(step.ways))
        return None


@dataclass(slots=True)
class _Reader:
    """Text -> nodes, from left to right."""

    text: str
    at: int = 0
    groups: int = 0

    @property
    def is_at_end(self) -> bool:
        return self.at >= len(self.text)

    def fail(self, what: str) -> NoReturn:
        raise BadPattern(f"{self.text!r} {what}")

    def _peek(self, wanted: str) -> bool:
        return self.text.startswith(wanted, self.at)

    def _take(self) -> str:
        if self.is_at_end:
            self.fail("ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def alternatives(self) -> _Node:
        """Branches between bars."""
        branches = [self._branch()]
        while self._peek("|"):
            self.at += 1
            branches.append(self._branch())
        return branches[0] if len(branches) == 1 else _either(branches)

    def _branch(self) -> _Node:
        parts: list[_Node] = []
        while not self.is_at_end and not self._peek("|") and not self._peek(")"):
            parts.append(self._repeated(self._atom()))

        def write(steps: list[_Step]) -> None:
            for part in parts:
                part.write(steps)

        return _Node(write, all(part.may_be_empty for part in parts))

    def _repeated(self, node: _Node) -> _Node:
        if self.is_at_end or self.text[self.at] not in "*+?{":
            return node
        if node.is_anchor:
            self.fail("repeats '^' or '$'")
        least, most = self._bounds()
        is_lazy = self._peek("?")
        self.at += is_lazy
        if not self.is_at_end and self.text[self.at] in "*+?{":
            self.fail(
                "has a possessive or a doubled quantifier, which is not supported: leave one of them"
            )
        if node.may_be_empty and most != 1:
            self.fail("repeats what may be empty: write it so that each repeat takes a character")
        return _repeat(node, least, most, is_lazy=is_lazy)

    def _bounds(self) -> tuple[int, int | None]:
        sign = self._take()
        if sign != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at : max(end, self.at)].partition(",")
        numbers = [part for part in (low, high) if part]
        if not low or not all(part.isascii() and part.isdigit() for part in numbers):
            self.fail("has a '{' that is no repetition: write '\\{' for the character")
        self.at = end + 1
        if any(len(part) > 4 or int(part) > _REPEATS_MAX for part in numbers):
            self.fail(f"repeats more than {_REPEATS_MAX} times")
        least = int(low)
        most = least if not comma else int(high) if high else None
        if most is not None and most < least:
            self.fail("has a repetition whose end is below its begin")
        return least, most

    def _atom(self) -> _Node:
        character = self._take()
        if character == "(":
            return self._group()
        if character == "[":
            return _one(self._class())
        if character == ".":
            return _one(_is_of(LINE_ENDS, negated=True))
        if character in "^$":
            return _Node(lambda steps: _write(steps, _Step(anchor=character)), True, True)
        if character == "\\":
            return _one(self._escaped())
        if character in "*+?{":
            self.fail(
                f"has a {character!r} with nothing to repeat: write '\\{character}' for the character"
            )
        return _one(frozenset(character).__contains__)

    def _group(self) -> _Node:
        if self._peek("?") and not self._peek("?:"):
            self.fail("has a group with '(?', of which only '(?:' is supported")
        if is_plain := self._peek("?:"):
            self.at += 2
            number = -1
        else:
            number, self.groups = self.groups, self.groups + 1
        inner = self.alternatives()
        if not self._peek(")"):
            self.fail("has a '(' without its ')'")
        self.at += 1
        if is_plain:
            return inner

        def write(steps: list[_Step]) -> None:
            _write(steps, _Step(group=2 * number))
            inner.write(steps)
            _write(steps, _Step(group=2 * number + 1))

        return _Node(write, inner.may_be_empty)

    def _escaped(self) -> _Test:
        letter = self._take()
        if letter.lower() in _CLASSES:
            return _is_of(_CLASSES[letter.lower()], negated=letter.isupper())
        if letter.isascii() and not letter.isalnum():
            return frozenset(letter).__contains__
        text = f"has '\\{letter}', which is not supported: of letters there are"
        return self.fail(f"{text} \\d, \\w, \\s, and \\D, \\W, \\S")

    def _class(self) -> _Test:
        negated = self._peek("^")
        self.at += negated
        if self._peek("]"):
            self.fail("has a ']' as the first character of a class: write '\\]'")
        tests: list[_Test] = []
        while not self._peek("]"):
            tests.append(self._range())
        self.at += 1
        return lambda character: any(test(character) for test in tests) is not negated

    def _range(self) -> _Test:
        low = self._member()
        if not self._peek("-") or self.text.startswith("-]", self.at):
            return frozenset(low).__contains__ if isinstance(low, str) else low
        self.at += 1
        high = self._member()
        if not isinstance(low, str) or not isinstance(high, str) or high < low:
            self.fail("has a range in a class whose ends are not two characters in order")
        return lambda character: low <= character <= high

    def _member(self) -> str | _Test:
        character = self._take()
        if character == "[" or (character == "&" and self._peek("&")):
            self.fail(
                "has a class in a class, or '&&', which is not supported: write '\\[' or '\\&'"
            )
        if character != "\\":
            return character
        escaped = self._escaped()
        last = self.text[self.at - 1]
        return escaped if last.isalnum() else last


def _write(steps: list[_Step], step: _Step) -> None:
    if len(steps) >= INSTRUCTIONS_MAX:
        raise BadPattern(f"the expression is too large: it has more than {INSTRUCTIONS_MAX} parts")
    steps.append(step)


def _one(test: _Test) -> _Node:
    return _Node(lambda steps: _write(steps, _Step(test=test)), False)


def _either(branches: list[_Node]) -> _Node:
    def write(steps: list[_Step]) -> None:
        ends: list[_Step] = []
        for branch in branches[:-1]:
            split = _Step()
            _write(steps, split)
            begin = len(steps)
            branch.write(steps)
            ends.append(_Step())
            _write(steps, ends[-1])
            split.ways = (begin, len(steps))
        branches[-1].write(steps)
        for end in ends:
            end.ways = (len(steps),)

    return _Node(write, any(branch.may_be_empty for branch in branches))


def _repeat(node: _Node, least: int, most: int | None, *, is_lazy: bool) -> _Node:
    def ways(inside: int, behind: int) -> tuple[int, ...]:
        return (behind, inside) if is_lazy else (inside, behind)

    def write(steps: list[_Step]) -> None:
        for _ in range(least):
            node.write(steps)
        if most is None:
            split = _Step()
            begin = len(steps)
            _write(steps, split)
            node.write(steps)
            _write(steps, _Step(ways=(begin,)))
            split.ways = ways(begin + 1, len(steps))
            return
        splits: list[tuple[_Step, int]] = []
        for _ in range(most - least):
            splits.append((_Step(), len(steps) + 1))
            _write(steps, splits[-1][0])
            node.write(steps)
        for split, inside in splits:
            split.ways = ways(inside, len(steps))

    return _Node(write, least == 0 or node.may_be_empty)
