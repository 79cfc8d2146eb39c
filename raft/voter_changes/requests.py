"""The first steps of every change of voters or leader: does this replica lead, is there room in the queue?"""

from __future__ import annotations

from typing import Final

from quorumd.raft.core import Core
from quorumd.raft.errors import KafkaError, Refusal
from quorumd.raft.leader_discovery import is_foreign
from quorumd.raft.roles import Leader, VoterChange

MAX_CHANGES: Final = 100
"""More requests than these do not wait for their turn."""


def leader_of_request(core: Core, reply_to: int, cluster_id: str | None) -> Leader | None:
    """This replica's leadership; None if it has none or the request is for another cluster.

    Then the request has been refused.
    """
    leader = core.state
    if is_foreign(core, cluster_id):
        text = f"this is cluster {core.cluster_id}, not {cluster_id}"
        core.reply_to_change(reply_to, KafkaError.INCONSISTENT_CLUSTER_ID, text)
    elif not isinstance(leader, Leader):
        known = "no leader is known" if core.leader is None else f"replica {core.leader.id} leads"
        text = f"replica {core.local.id} does not lead: {known}"
        core.reply_to_change(reply_to, KafkaError.NOT_LEADER_OR_FOLLOWER, text)
    elif core.config.is_kafka_log:
        text = f"replica {core.local.id} is a witness that hands over: ask again in a moment"
        core.reply_to_change(reply_to, KafkaError.NOT_LEADER_OR_FOLLOWER, text)
    else:
        return leader
    return None


def queue(core: Core, leader: Leader, change: VoterChange, refusal: Refusal | None) -> None:
    """Have a change wait for its turn, unless it is refused or too many wait already."""
    if refusal is None and len(leader.changes) >= MAX_CHANGES:
        text = f"{MAX_CHANGES} changes of the voters wait already: ask again later"
        refusal = Refusal(KafkaError.REQUEST_TIMED_OUT, text)
    if refusal is not None:
        core.reply_to_change(change.reply_to, *refusal)
    else:
        leader.changes.append(change)
