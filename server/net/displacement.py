"""Whose connection makes room where all are from anywhere: so that one address fills no limit for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def oldest_of_crowd(ips: Mapping[T, str]) -> T | None:
    """The oldest connection of the address that has the most; `ips` has the oldest connections first."""
    if not ips:
        return None
    [(crowded, _)] = Counter(ips.values()).most_common(1)
    return next(each for each, ip in ips.items() if ip == crowded)
