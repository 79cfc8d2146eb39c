"""Asking a leader under test to change voters or leader, and looking at what it does."""

from __future__ import annotations

from typing import Any

from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import (
    AppendControl,
    SendReply,
    VoterChangeReply,
)
from quorumd.raft.events import (
    AddVoterRequested,
    ReassignmentRequested,
    RemoveVoterRequested,
    TransferRequested,
    UpdateVoterRequested,
)
from quorumd.raft.roles import Leader
from quorumd.raft.types import Endpoint, ReplicaKey, Voter, VoterSet
from tests.raft.harness import (
    CLUSTER,
    Bench,
    endpoints,
)
from tests.raft.harness import leader as bare_leader

FREE: dict[str, Any] = {"configured_voters": VoterSet()}
"""No quorum.voters: any id may come and go."""
END = 4
"""Where the log of a leader of these tests ends: its own LeaderChange is at 3."""
MOVED = (Endpoint("CONTROLLER", "elsewhere", 1234),)


def leading(size: int = 3, **more: Any) -> Bench:
    """Replica 1 leads epoch 4; all others have everything, which is committed."""
    bench = bare_leader(size, **({**FREE} | more))
    fetch_all(bench)
    assert bench.node.high_watermark == bench.node.core.log.end_offset
    return bench


def fetch_all(bench: Bench, *keys: ReplicaKey) -> None:
    """These replicas, or all other voters, fetch from the log's end."""
    bench.sync()
    end = bench.node.core.log.end
    for key in keys or bench.node.core.other_voters():
        bench.fetch(key, *end)


def add(bench: Bench, key: ReplicaKey, **more: Any) -> VoterChangeReply | None:
    values = {
        "cluster_id": CLUSTER,
        "voter": Voter(key, endpoints(key.id)),
        "timeout_ms": 5000,
    } | more
    return changed(bench, AddVoterRequested, **values)


def remove(bench: Bench, key: ReplicaKey, **more: Any) -> VoterChangeReply | None:
    values = {"cluster_id": CLUSTER, "key": key, "timeout_ms": 5000} | more
    return changed(bench, RemoveVoterRequested, **values)


def reassign(bench: Bench, *ids: int) -> VoterChangeReply | None:
    return changed(bench, ReassignmentRequested, target=ids or None, timeout_ms=5000)


def transfer(bench: Bench, to: ReplicaKey | None, **more: Any) -> VoterChangeReply | None:
    values = {"cluster_id": CLUSTER, "to": to, "timeout_ms": 5000} | more
    return changed(bench, TransferRequested, **values)


def update(bench: Bench, voter: Voter, epoch: int = 4, **more: Any) -> VoterChangeReply | None:
    values = {"cluster_id": CLUSTER, "epoch": epoch, "voter": voter} | more
    return changed(bench, UpdateVoterRequested, **values)


def changed(bench: Bench, make: Any, **values: Any) -> VoterChangeReply | None:
    answer = bench.ask(make, **values)
    assert answer is None or isinstance(answer, VoterChangeReply)
    return answer


def answers(bench: Bench) -> list[VoterChangeReply]:
    """Those of the last step."""
    found = [effect.reply for effect in bench.find(SendReply)]
    return [answer for answer in found if isinstance(answer, VoterChangeReply)]


def last_answer(bench: Bench) -> VoterChangeReply:
    found = [e.reply for e in bench.find_all(SendReply) if isinstance(e.reply, VoterChangeReply)]
    return found[-1]


def written(bench: Bench) -> list[VotersRecord]:
    """The voter sets that this replica has appended."""
    return [
        record
        for effect in bench.find_all(AppendControl)
        for record in effect.records
        if isinstance(record, VotersRecord)
    ]


def wait_for(bench: Bench) -> str:
    state = bench.node.core.state
    assert isinstance(state, Leader)
    return state.changes[0].waits_for


def refused(answer: VoterChangeReply | None) -> tuple[str | None, str]:
    assert answer is not None
    return answer.error, answer.message or ""
