"""TransferLeader: leadership is handed to a voter that is asked for, or to any.

The leader handles the request in these steps:

1. It must lead, of the cluster that the request names, if it names one.
2. The successor must be one voter, and fetch; no other transfer may be under way.
3. From now on no batches of clients are appended.
4. Wait until the successor has everything, and all of it is committed; give up after an election timeout,
   or the request's own, and append again.
5. Reply, and resign with the successor first in line; alone, if it was asked for: the others campaign only
   after the longest delay, in which a successor at another site can be elected.

A leader that a reassignment removes, and a witness that had to lead, hand over by the same steps without a
request.
"""

from __future__ import annotations

from quorumd.raft.core import Core
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import TransferRequested
from quorumd.raft.leadership import resign
from quorumd.raft.replica_progress import synced_end_offset
from quorumd.raft.roles import Leader, Transfer
from quorumd.raft.transitions import Trigger
from quorumd.raft.types import ReplicaKey
from quorumd.raft.voter_changes.checks import is_fetching
from quorumd.raft.voter_changes.requests import leader_of_request
from quorumd.raft.voter_changes.voter_sets import listed


def on_transfer_requested(core: Core, event: TransferRequested) -> None:
    """Steps 1 to 3.

    Errors: INCONSISTENT_CLUSTER_ID, NOT_LEADER_OR_FOLLOWER, VOTER_NOT_FOUND,
    ELIGIBLE_LEADERS_NOT_AVAILABLE, REQUEST_TIMED_OUT.
    """
    leader = leader_of_request(core, event.reply_to, event.cluster_id)
    if leader is None:
        return
    to = event.to
    if to is not None and core.is_local(to):
        core.reply_to_change(event.reply_to)
        return
    others = [key for key in core.other_voters() if to is None or to.matches(key)]
    if to is not None and len(others) != 1:
        text = f"{to} is not one voter: the voters are {listed(core.voters.keys)}"
        core.reply_to_change(event.reply_to, KafkaError.VOTER_NOT_FOUND, text)
    elif not any(is_fetching(core, leader, key) for key in others):
        text = f"none of {listed(others)} has fetched lately: is it running?"
        if not others:
            text = f"{core.local} is the only voter: add another one first"
        core.reply_to_change(event.reply_to, KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE, text)
    elif leader.transfer is not None:
        text = "another transfer is under way: ask again when it is over"
        core.reply_to_change(event.reply_to, KafkaError.REQUEST_TIMED_OUT, text)
    else:
        wait_ms = min(event.timeout_ms, core.config.election_timeout_ms)
        key = None if to is None else others[0]
        leader.transfer = Transfer(event.reply_to, key, core.now_ms, core.now_ms + wait_ms)


def advance_transfer(core: Core, leader: Leader, transfer: Transfer) -> None:
    """Steps 4 and 5."""
    if hand_over(core, leader, transfer):
        return
    if core.now_ms < transfer.deadline_ms:
        return
    leader.transfer = None
    if transfer.reply_to is None:
        resign(core, leader, Trigger.RESIGNATION)
    else:
        waited = core.now_ms - transfer.asked_at_ms
        who = (
            "no voter had everything"
            if transfer.to is None
            else f"{transfer.to} had not everything"
        )
        text = f"{who} after {waited} ms. Repeat it"
        core.reply_to_change(transfer.reply_to, KafkaError.REQUEST_TIMED_OUT, text)


def hand_over(core: Core, leader: Leader, transfer: Transfer | None) -> bool:
    """Resign once a successor has everything and all of it is committed. True if that was done."""
    if core.high_watermark != core.log.end_offset and transfer is not None:
        return False
    wanted = None if transfer is None else transfer.to
    is_beside_kafka = core.config.is_kafka_log
    for key in _beside_kafka(core, leader) if is_beside_kafka else core.other_voters():
        has_all = synced_end_offset(core, leader, key) == core.log.end_offset
        if has_all and wanted in (None, key) and is_fetching(core, leader, key):
            if transfer is not None:
                leader.transfer = None
                if transfer.reply_to is not None:
                    core.reply_to_change(transfer.reply_to)
            core.report(f"leadership is handed to {key}")
            resign(core, leader, Trigger.RESIGNATION, key, is_first_alone=wanted is not None)
            return True
    return False


def _beside_kafka(core: Core, leader: Leader) -> tuple[ReplicaKey, ...]:
    """The voters to which a witness that leads may hand over.

    Those that asked for votes, as long as one of them fetches or is expected to: of the others each may be
    a witness, which would hand over in its turn.
    """
    others = core.other_voters()
    is_new = core.now_ms < leader.elected_at_ms + core.config.fetch_timeout_ms
    awaited = [
        key
        for key in others
        if key in core.kafka_log.campaigned_for
        and key.id not in core.connections.unreachable
        and (is_new or is_fetching(core, leader, key))
    ]
    return tuple(awaited) or others
