"""Stories of a quorum, compared with the texts in tests/scenarios, where they can be read and reviewed.

After a change that is meant: `python -m tests.simulation.test_scenarios --rewrite`, then read the diff.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.scenario import Scenario

FOLDER = Path(__file__).resolve().parents[1] / "scenarios"


def begun(seed: int) -> Scenario:
    """Three voters with a leader and three committed records; their story so far is left out."""
    scenario = Scenario(seed)
    scenario.start()
    scenario.settle()
    for _ in range(3):
        scenario.append()
        scenario.run(20)
    scenario.lines.clear()
    return scenario


def bootstrap() -> Scenario:
    """Two of three new nodes elect a leader; nothing is committed until the third is there."""
    scenario = Scenario(23)
    one, two, three = scenario.machines
    with scenario.recording():
        scenario.start(one, two)
        scenario.run(400)
        scenario.note("the third node comes")
        scenario.start(three)
        scenario.run(100)
    return scenario


def leader_killed() -> Scenario:
    """The leader's process is killed: its connections are reset, and a successor is found at once."""
    scenario = begun(9)
    with scenario.recording():
        scenario.kill(scenario.leader)
        scenario.run(120)
    return scenario


def graceful_handover() -> Scenario:
    """A leader that shuts down names its successors; the first of them does not wait."""
    scenario = begun(33)
    leader = scenario.leader
    with scenario.recording():
        scenario.record(leader, "is asked to stop")
        scenario.resign(leader)
        scenario.run(60)
    return scenario


def pre_vote_under_partition() -> Scenario:
    """A follower is cut off: it asks for pre-votes in vain, its epoch stays, the others are not disturbed."""
    scenario = begun(70)
    lonely = scenario.others(scenario.leader)[0]
    with scenario.recording():
        scenario.record(lonely, "is cut off")
        scenario.isolate(lonely)
        scenario.append()
        scenario.run(2600)
        scenario.record(lonely, "is back")
        scenario.rejoin(lonely)
        scenario.run(2500)
    return scenario


def divergence_and_truncation() -> Scenario:
    """A leader is cut off with records that no other replica has; on its return they are truncated."""
    scenario = begun(4)
    old = scenario.leader
    with scenario.recording():
        scenario.record(old, "is cut off and appends three records")
        scenario.isolate(old)
        for _ in range(3):
            scenario.append(old)
        scenario.run(2600)
        scenario.note("a client writes to the new leader")
        scenario.append()
        scenario.run(600)
        scenario.record(old, "is back")
        scenario.rejoin(old)
        scenario.run(2500)
    return scenario


STORIES: tuple[Callable[[], Scenario], ...] = (
    bootstrap,
    leader_killed,
    graceful_handover,
    pre_vote_under_partition,
    divergence_and_truncation,
)


def text_of(story: Callable[[], Scenario]) -> str:
    lines = [story.__doc__ or "", "", *story().lines]
    return "\n".join(line.rstrip() for line in lines) + "\n"


@pytest.mark.pure
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_story_goes_as_it_is_written(story: Callable[[], Scenario]) -> None:
    written = (FOLDER / f"{story.__name__}.txt").read_text(encoding="utf-8")
    assert text_of(story) == written, (
        "if this is meant: python -m tests.simulation.test_scenarios --rewrite"
    )


if __name__ == "__main__" and sys.argv[1:] == ["--rewrite"]:
    FOLDER.mkdir(exist_ok=True)
    for each in STORIES:
        (FOLDER / f"{each.__name__}.txt").write_text(text_of(each), encoding="utf-8")
