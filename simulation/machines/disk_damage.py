"""Damage to bytes at rest: durable ones that no un-synced change touches, and not the zeros that a
file ends with. Hit is what a process reads as well as what is durable; sizes never change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import NamedTuple

from simulation.machines.disk_image import Directory, File


class DamageKind(Enum):
    """Change of the bytes at a position."""

    FLIPPED_BIT = "flipped bit"
    STALE_SECTOR = "stale sector"
    MISPLACED_SECTOR = "misplaced sector"


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage of `size` bytes from byte `position`: one byte or up to a sector."""

    path: Path
    position: int
    size: int
    kind: DamageKind


class _Sector(NamedTuple):
    path: str
    file: File
    begin: int
    end: int

    def content(self) -> bytes:
        return self.file.durable.read(self.begin, self.end - self.begin)

    def overwrite(self, data: bytes, kind: DamageKind) -> Damage:
        self.file.damage(self.begin, data)
        return Damage(Path(self.path), self.begin, len(data), kind)


def flip_bit(root: Directory, pattern: str, random: Random) -> Damage | None:
    """Flips one bit of a file whose whole path matches `pattern`; None if there is none to hit."""
    sector = _draw(_sectors(root, pattern), random)
    if sector is None:
        return None
    at = random.randrange(sector.begin, sector.end)
    before = sector.file.durable.read(at, 1)[0]
    sector.file.damage(at, bytes([before ^ 1 << random.randrange(8)]))
    return Damage(Path(sector.path), at, 1, DamageKind.FLIPPED_BIT)


def stale_sector(root: Directory, pattern: str, random: Random) -> Damage | None:
    """Puts a sector back to what it was before the last synced write to it, or to zeros."""
    found = [sector for sector in _sectors(root, pattern) if any(sector.content())]
    sector = _draw(found, random)
    if sector is None:
        return None
    older = sector.file.older(sector.begin, sector.end) if random.random() < 0.5 else None
    if older is None or older == sector.content():
        older = bytes(sector.end - sector.begin)
    return sector.overwrite(older, DamageKind.STALE_SECTOR)


def misplace_sector(root: Directory, pattern: str, random: Random) -> Damage | None:
    """Gives a sector the content of another one, of the same or another matching file."""
    found = _sectors(root, pattern)
    sector = _draw(found, random)
    if sector is None:
        return None
    there = sector.content()
    others = (other.content().ljust(len(there), b"\0")[: len(there)] for other in found)
    contents = [data for data in others if data != there]
    if not contents:
        return None
    return sector.overwrite(random.choice(contents), DamageKind.MISPLACED_SECTOR)


def _sectors(root: Directory, pattern: str) -> list[_Sector]:
    return [
        _Sector(path, file, begin, end)
        for path, file in root.walk()
        if fnmatchcase(path, pattern)
        for begin, end in file.clean_sectors()
    ]


def _draw(sectors: list[_Sector], random: Random) -> _Sector | None:
    """Each file is as likely as any other, however large."""
    if not sectors:
        return None
    path = random.choice(list(dict.fromkeys(sector.path for sector in sectors)))
    return random.choice([sector for sector in sectors if sector.path == path])
