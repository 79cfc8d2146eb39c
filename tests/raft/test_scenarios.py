"""Stories of a quorum, compared with the texts in tests/scenarios, where they can be read and reviewed.

After a change that is meant: `python -m tests.raft.test_scenarios --rewrite`, then read the diff.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumd.raft.events import ResignationRequested
from quorumd.raft.roles import Role
from tests.raft.harness import key
from tests.raft.network import Cluster, Replica

FOLDER = Path(__file__).resolve().parents[1] / "scenarios"


def leader_of(cluster: Cluster) -> Replica:
    leader = cluster.leader()
    assert leader is not None
    return leader


def begun(seed: int = 1) -> Cluster:
    """Three voters with a leader and three committed records; their story so far is left out."""
    cluster = Cluster(seed)
    cluster.settle()
    for _ in range(3):
        cluster.append()
        cluster.run(20)
    cluster.log.clear()
    return cluster


def bootstrap() -> Cluster:
    """Two of three new nodes elect a leader; nothing is committed until the third is there."""
    cluster = Cluster(3, start=False)
    cluster.start(key(1))
    cluster.start(key(2))
    cluster.run(400)
    cluster.note("the third node comes")
    cluster.start(key(3))
    cluster.run(100)
    return cluster


def leader_killed() -> Cluster:
    """The leader's process is killed: its connections are reset, and a successor is found at once."""
    cluster = begun()
    cluster.crash(leader_of(cluster).local)
    cluster.run(120)
    return cluster


def graceful_handover() -> Cluster:
    """A leader that shuts down names its successors; the first of them does not wait."""
    cluster = begun()
    leader = leader_of(cluster)
    cluster.note(f"{leader.local.id} is asked to stop")
    leader.step(ResignationRequested("stopped", shutting_down=True))
    cluster.run(60)
    return cluster


def pre_vote_under_partition() -> Cluster:
    """A follower is cut off: it asks for pre-votes in vain, its epoch stays, nobody is disturbed."""
    cluster = begun()
    leader = leader_of(cluster)
    lonely = next(k for k in cluster.keys if k != leader.local)
    cluster.note(f"{lonely.id} is cut off")
    cluster.network.isolate([lonely.id], [k.id for k in cluster.keys if k != lonely])
    cluster.append()
    cluster.run(2600)
    cluster.note(f"{lonely.id} is back")
    cluster.network.cut.clear()
    cluster.run(2500)
    return cluster


def divergence_and_truncation() -> Cluster:
    """A leader is cut off with records that nobody else has; on its return they are cut away."""
    cluster = begun()
    old = leader_of(cluster)
    cluster.note(f"{old.local.id} is cut off and appends three records")
    cluster.network.isolate([old.local.id], [k.id for k in cluster.keys if k != old.local])
    for _ in range(3):
        cluster.append(old)
    cluster.run(2600)
    cluster.note("a client writes to the new leader")
    others = [replica for replica in cluster.replicas.values() if replica is not old]
    cluster.append(next(replica for replica in others if replica.node.role is Role.LEADER))
    cluster.run(600)
    cluster.note(f"{old.local.id} is back")
    cluster.network.cut.clear()
    cluster.run(2500)
    return cluster


STORIES: tuple[Callable[[], Cluster], ...] = (
    bootstrap,
    leader_killed,
    graceful_handover,
    pre_vote_under_partition,
    divergence_and_truncation,
)


def told(story: Callable[[], Cluster]) -> str:
    lines = [story.__doc__ or "", "", *story().log]
    return "\n".join(line.rstrip() for line in lines) + "\n"


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_story_goes_as_it_is_written(story: Callable[[], Cluster]) -> None:
    written = (FOLDER / f"{story.__name__}.txt").read_text(encoding="utf-8")
    assert told(story) == written, "if this is meant: python -m tests.raft.test_scenarios --rewrite"


if __name__ == "__main__" and sys.argv[1:] == ["--rewrite"]:
    FOLDER.mkdir(exist_ok=True)
    for each in STORIES:
        (FOLDER / f"{each.__name__}.txt").write_text(told(each), encoding="utf-8")
