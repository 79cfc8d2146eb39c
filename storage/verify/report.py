"""Findings of a verification, and where it reports them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from quorumd.storage.errors import RESTORE, DamagedLog, DamagedSnapshot, StorageError

FINDINGS_MAX = 100
"""Of one file: a disk that lost its contents must not fill the memory with words about it."""
TRIES_MAX = 5
_LISTED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it should be.

    `position` is in bytes from the start of `path`, `offset` the first log offset in doubt; each is
    None where it makes no sense. `remedy` says what to do next.
    """

    path: Path
    what: str
    position: int | None = None
    offset: int | None = None
    remedy: str = RESTORE

    def __str__(self) -> str:
        places = []
        if self.position is not None:
            places.append(f"byte {self.position}")
        if self.offset is not None:
            places.append(f"offset {self.offset}")
        place = f"{', '.join(places)}: " if places else ""
        return f"{self.path}: {place}{self.what}"


def finding_of(error: StorageError) -> Finding:
    """The finding that a refused file is."""
    position = error.position if isinstance(error, DamagedLog | DamagedSnapshot) else None
    offset = error.offset if isinstance(error, DamagedLog) else None
    return Finding(
        path=error.path, what=error.what, position=position, offset=offset, remedy=error.remedy
    )


def listed(findings: Sequence[Finding]) -> str:
    """The findings for an error, a line each; of many only the first."""
    lines = "".join(f"\n  {finding}" for finding in findings[:_LISTED_MAX])
    left = len(findings) - _LISTED_MAX
    return f"{lines}\n  and {left} more" if left > 0 else lines


@dataclass(slots=True)
class VerifyReport:
    """Takes the findings and the progress of a verification while it runs.

    A note is a sentence on what is no damage; `on_bytes` gets how many more bytes were read;
    `pause` is called before something is read again.
    """

    on_finding: Callable[[Finding], object]
    on_note: Callable[[str], object]
    on_bytes: Callable[[int], object]
    pause: Callable[[], object]
    findings: int = 0

    def add(self, *findings: Finding) -> None:
        for finding in findings:
            self.findings += 1
            self.on_finding(finding)


class HasFindings(Protocol):
    """The result of reading a file once."""

    findings: list[Finding]


T = TypeVar("T", bound=HasFindings)


def settled(read: Callable[[], T], pause: Callable[[], object]) -> T:
    """Reads once, or, if something is wrong, until two reads in a row agree, a few times at the most.

    A running node may just have written there.
    """
    seen = read()
    for _ in range(TRIES_MAX):
        if not seen.findings:
            break
        pause()
        before, seen = seen, read()
        if seen.findings == before.findings:
            break
    return seen
