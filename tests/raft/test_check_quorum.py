"""A leader that a majority does not fetch from any more: how long it leaves the next election to others."""

from __future__ import annotations

import pytest

from quorumd.raft.events import ResignationRequested
from quorumd.raft.roles import Role
from tests.raft.harness import leader


@pytest.mark.parametrize(("size", "waits_ms"), [(2, 1500), (3, 1500), (4, 3500), (5, 3500)])
def test_who_lost_its_quorum_leaves_it_to_those_who_still_reached_it(
    size: int, waits_ms: int
) -> None:
    """Until they have missed it for the fetch timeout they refuse pre-votes to all others."""
    bench = leader(size)
    bench.wait(2999)
    assert bench.role is Role.LEADER
    bench.wait(1)
    assert bench.role is Role.RESIGNED
    bench.wait(waits_ms - 1)
    assert bench.role is Role.RESIGNED
    bench.wait(1)
    assert bench.role is Role.PROSPECTIVE


def test_who_resigned_for_another_reason_waits_for_an_election_timeout() -> None:
    bench = leader(5)
    bench.step(ResignationRequested("maintenance", shutting_down=False))
    bench.wait(1500)
    assert bench.role is Role.PROSPECTIVE
