"""A record's hops are found among the calls of three processes, and lie end to end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.calls import Call, Calls, What
from bench.timeline import BESIDE, HOPS, Sight, Way, draw, hops, measure, table, way_of

CLIENT, TO_LEADER, TO_FIRST, TO_SECOND, LOG, LINES = 5, 6, 7, 8, 9, 2


def calls(*found: tuple[int, What, int]) -> Calls:
    """Each takes one nanosecond."""
    return Calls([Call(at, at + 1, what, descriptor, 1) for at, what, descriptor in found])


def sight(*, answered_ns: int = 100, first_synced_ns: int = 50) -> Sight:
    leader = calls(
        (5, What.READ, TO_FIRST),
        (10, What.READ, CLIENT),
        (12, What.SEND, LINES),
        (20, What.SEND, TO_FIRST),
        (21, What.SEND, TO_SECOND),
        (25, What.WRITE_FILE, LOG),
        (27, What.SYNC, LOG),
        (70, What.READ, TO_FIRST),
        (90, What.READ, TO_SECOND),
        (answered_ns, What.SEND, CLIENT),
    )
    first = calls(
        (30, What.READ, TO_LEADER),
        (40, What.WRITE_FILE, LOG),
        (first_synced_ns, What.SYNC, LOG),
        (60, What.SEND, TO_LEADER),
    )
    second = calls(
        (35, What.READ, TO_LEADER),
        (45, What.WRITE_FILE, LOG),
        (55, What.SYNC, LOG),
        (80, What.SEND, TO_LEADER),
    )
    followers = [(first, [TO_LEADER], [TO_FIRST]), (second, [TO_LEADER], [TO_SECOND])]
    return Sight(leader, [CLIENT], followers)


def test_the_way_leads_over_the_follower_that_came_first() -> None:
    way = way_of(sight(), 1, 120)
    assert way == Way((1, 11, 20, 31, 40, 41, 51, 60, 71, 100, 120), (11, 25, 26, 28))
    assert len(way.moments) == len(HOPS) + 1
    assert len(way.beside) == len(BESIDE) + 1
    assert hops([way])["follower: sync"] == [0.01]


def test_a_follower_that_synced_too_late_is_not_the_one_that_was_waited_for() -> None:
    way = way_of(sight(first_synced_ns=75), 1, 120)
    assert way is not None
    assert way.moments == (1, 11, 21, 36, 45, 46, 56, 80, 91, 100, 120)


def test_a_record_whose_way_was_not_seen_as_a_whole_has_none() -> None:
    assert way_of(sight(answered_ns=65), 1, 120) is None
    assert way_of(sight(), 12, 120) is None


@pytest.mark.long
def test_a_disk_slower_than_the_record_stays_in_the_picture(tmp_path: Path) -> None:
    """A leader whose followers synced first answers before its own fsync ends."""
    way = Way(tuple(range(0, 11_000, 1000)), (1000, 2000, 3000, 90_000_000))
    draw([way, way], tmp_path / "way.svg")
    assert "89997 us" in (tmp_path / "way.svg").read_text()


@pytest.mark.live
@pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler"
)
def test_real_nodes_show_the_way_of_a_record(tmp_path: Path) -> None:
    ways = measure("", tmp_path, 300, 100)
    # On a busy machine few records have their fsync and their Fetch to themselves.
    assert len(ways) > 5
    for way in ways:
        assert sorted(way.moments) == list(way.moments)
        assert sorted(way.beside) == list(way.beside)
    for name in (*HOPS, *BESIDE, "request to response"):
        assert name in table(ways)
    draw(ways, tmp_path / "way.svg")
    assert "follower: sync" in (tmp_path / "way.svg").read_text()
