"""A leader appends the batches of clients, or refuses them with a reason."""

from __future__ import annotations

from quorumd.raft.bootstrap import bootstrap_problem
from quorumd.raft.control_appends import require_own_log
from quorumd.raft.core import Core
from quorumd.raft.effects import AppendClient
from quorumd.raft.errors import KafkaError, Refusal
from quorumd.raft.events import AppendRequested
from quorumd.raft.parked_fetches import wake_fetches
from quorumd.raft.roles import Leader


def append_refusal(core: Core) -> Refusal | None:
    """The reason why this replica takes no clients' batches now; None if it does."""
    leader = core.state
    if not isinstance(leader, Leader) or core.is_shutting_down:
        return Refusal(KafkaError.NOT_LEADER_OR_FOLLOWER, "this replica does not lead")
    if leader.transfer is not None:
        return Refusal(KafkaError.NOT_LEADER_OR_FOLLOWER, "leadership is being handed over")
    if core.config.is_witness and core.other_voters():
        return Refusal(
            KafkaError.NOT_LEADER_OR_FOLLOWER, "a witness leads only until another voter can"
        )
    if core.is_bootstrapping:
        return Refusal(KafkaError.NOT_ENOUGH_REPLICAS, bootstrap_problem(core))
    return None


def on_append_requested(core: Core, event: AppendRequested) -> None:
    """Clients' batches get the next offsets and the present epoch.

    They come only where `append_refusal` is None: anything else is a broken invariant.
    """
    require_own_log(core)
    assert append_refusal(core) is None, "batches of clients were taken that must be refused"
    leader = core.state
    assert isinstance(leader, Leader), "only a leader appends"
    base = core.log.end_offset
    end = base + event.record_count
    core.log.append(end, ((core.epoch, base),))
    write = core.writes.next_of_log(end)
    core.effects.append(AppendClient(write, base, core.epoch, event.token))
    wake_fetches(core, leader)
