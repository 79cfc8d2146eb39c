"""Faults of a configuration, in words that say where and what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class PicklableError(Exception):
    """An exception that multiprocessing and concurrent.futures can bring from a worker to its caller."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]:
        # Not made by its constructor, which takes other arguments than the message.
        return Exception.__new__, (type(self), *self.args), self.__dict__


class ConfigProblem(NamedTuple):
    """One thing to correct. `where` is `file:line`, a file, or an environment variable."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class BadValue(ValueError):
    """A text that is not a value of its key; the message names the permitted ones."""


class ConfigError(PicklableError):
    """A configuration that a node must not start with; `problems` holds all of them at once."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        if len(problems) == 1:
            message = str(problems[0])
        else:
            message = f"{len(problems)} problems in the configuration:"
            message += "".join(f"\n  {problem}" for problem in problems)
        super().__init__(message)
        self.problems = tuple(problems)
