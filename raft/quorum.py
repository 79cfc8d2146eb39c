"""Majority arithmetic: pure functions over votes and log end offsets."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from quorumd.raft.types import ReplicaKey


def majority(size: int) -> int:
    """The least number of voters that is more than half of `size`."""
    return size // 2 + 1


def majority_end_offset(end_offsets: Collection[int]) -> int:
    """Largest exclusive end offset that a majority of voters has synced.

    `end_offsets` holds one synced log end offset for each voter, -1 where it is not known.
    The result is -1 if fewer than a majority are known. Source: KIP-595, Fetch request handling, step 4.
    """
    assert end_offsets, "a voter set is never empty"
    return sorted(end_offsets)[(len(end_offsets) - 1) // 2]


def is_won(granted: int, voters: int) -> bool:
    """True if the granted votes are a majority."""
    return granted >= majority(voters)


def is_lost(refused: int, voters: int) -> bool:
    """True if a majority cannot be reached any more (KIP-595, note on gridlocked elections)."""
    return voters - refused < majority(voters)


def successor_delay_ms(position: int | None, backoff_ms: int, backoff_max_ms: int) -> int:
    """Time in ms that a preferred successor waits before it campaigns after EndQuorumEpoch.

    `position` counts from 0; None is a voter that the leader did not list.
    Source: KIP-595, EndQuorumEpoch: MIN(retryBackOffMaxMs, retryBackoffMs * 2^(N - 1)).
    """
    if position is None:
        return backoff_max_ms
    if position == 0:
        return 0
    return min(backoff_max_ms, backoff_ms << min(position - 1, 20))


def backoff_ms(attempts: int, initial_ms: int, max_ms: int) -> int:
    """Exponential backoff after `attempts` failures in a row (1 or more), as in KIP-580."""
    return min(max_ms, initial_ms << min(attempts - 1, 20))


def preferred_successors(end_offsets: Iterable[tuple[ReplicaKey, int]]) -> tuple[ReplicaKey, ...]:
    """Keys by replicated offset, the most up-to-date first; ties keep the given order."""
    return tuple(key for key, _ in sorted(end_offsets, key=lambda item: -item[1]))
