"""Puts a mutant's code into the functions of this process. No file is touched."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator
from types import CodeType, FunctionType

_Place = tuple[str, str, int]
"""File, qualified name and first line of a function."""


class Functions:
    """All functions of some files that exist now, wherever they are referred to.

    Make it once everything is imported, before the first fork.
    """

    def __init__(self, filenames: set[str]) -> None:
        self._by_place: dict[_Place, list[FunctionType]] = defaultdict(list)
        # Tests freeze what they have collected, and the collector reports nothing of what is frozen.
        gc.unfreeze()
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and each.__code__.co_filename in filenames:
                self._by_place[_place_of(each.__code__)].append(each)
        assert self._by_place, "none of these files has a function: no mutant would be noticed"

    def replace(self, module_code: CodeType) -> int:
        """Every function runs the code that the module has here. Returns how many differ now."""
        replaced = 0
        for code in _codes_in(module_code):
            for function in self._by_place.get(_place_of(code), ()):
                if function.__code__ != code:
                    function.__code__ = code
                    replaced += 1
        return replaced


def _place_of(code: CodeType) -> _Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes_in(constant)
