"""Planted bugs of votes and epochs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from quorumd.raft import (
    check_quorum,
    fetch_requests,
    high_watermark,
    leader_discovery,
    pre_vote,
    quorum,
    quorum_epochs,
    replica_progress,
    resignation,
    snapshot_requests,
    vote_requests,
    witness,
)
from quorumd.raft.config import StoredState
from quorumd.raft.core import Core
from quorumd.raft.core_parts import UnconfirmedEnd
from quorumd.raft.effects import Peer, Reply, SendReply, Vote
from quorumd.raft.events import EndQuorumEpochRequestReceived, VoteRequestReceived
from quorumd.raft.role_changes import become_follower
from quorumd.raft.roles import Follower, Leader
from quorumd.raft.transitions import Trigger
from quorumd.raft.types import Endpoint, ReplicaKey
from quorumd.raft.voter_changes import update_voter
from quorumd.server import node as server_node
from quorumd.storage import quorum_state
from simulation.planted.table import HOSTILE, SPLITS, Plant, planted


@planted(
    "granted vote leaves unsynced",
    "A response does not wait for the quorum state that it speaks of (KIP-595, Vote, step 4).",
    caught_by=["votes survive restarts"],
    seeds=5,
)
def _granted_vote_leaves_unsynced(plant: Plant) -> None:
    def wrong(core: Core, reply_to: int, reply: Reply) -> None:
        core.effects.append(SendReply(reply_to=reply_to, reply=reply, after=0))

    plant(Core, "reply", wrong)


@planted(
    "own vote leaves unsynced",
    "A candidate asks for votes before its own is on disk (KIP-595, Vote request).",
    caught_by=["votes survive restarts"],
    seeds=5,
)
def _own_vote_leaves_unsynced(plant: Plant) -> None:
    right = Core.send

    def wrong(core: Core, to: Peer, request: Any, after: int) -> None:
        right(core, to, request, 0 if isinstance(request, Vote) else after)

    plant(Core, "send", wrong)


@planted(
    "vote is forgotten at a restart",
    "A replica that comes back takes its stored vote for none (KIP-595, persistent state).",
    caught_by=["votes survive restarts", "one leader per epoch"],
    seeds=12,
    faults=frozenset({"kill", "crash at an effect"}),
)
def _vote_is_forgotten(plant: Plant) -> None:
    right = server_node.stored_state

    def wrong(state: quorum_state.QuorumState) -> StoredState:
        return replace(right(state), voted=None)

    plant(server_node, "stored_state", wrong)


@planted(
    "old epoch is committed by counting",
    "A leader commits records of earlier epochs before one of its own (KIP-595, extra condition on"
    " commitment; Raft, figure 8).",
    caught_by=["a leader commits with a record of its epoch"],
    seeds=12,
    faults=SPLITS,
)
def _old_epoch_is_committed(plant: Plant) -> None:
    right = high_watermark.advance_high_watermark

    def wrong(core: Core, leader: Leader) -> None:
        start_offset, leader.epoch_start_offset = leader.epoch_start_offset, 0
        right(core, leader)
        leader.epoch_start_offset = start_offset

    plant(high_watermark, "advance_high_watermark", wrong)
    plant(fetch_requests, "advance_high_watermark", wrong)


@planted(
    "shorter log gets a vote",
    "A vote is granted without the up-to-date check (KIP-595, Vote request handling).",
    caught_by=["a leader has every committed record"],
    seeds=54,
)
def _shorter_log_gets_a_vote(plant: Plant) -> None:
    for module in (vote_requests, pre_vote, witness):
        plant(module, "is_up_to_date", lambda core, last: True)


@planted(
    "a minority elects",
    "One vote less than a majority wins an election (KIP-595, Vote response handling).",
    caught_by=["one leader per epoch", "a leader has every committed record"],
    seeds=24,
)
def _a_minority_elects(plant: Plant) -> None:
    plant(quorum, "is_won", lambda granted, voters: granted >= max(1, voters // 2))


@planted(
    "smaller epoch is followed",
    "BeginQuorumEpoch of an epoch that is over is obeyed (KIP-595: FENCED_LEADER_EPOCH).",
    caught_by=["epoch and high watermark never go back"],
    seeds=72,
)
def _smaller_epoch_is_followed(plant: Plant) -> None:
    right = quorum_epochs._check_sender

    def wrong(
        core: Core,
        cluster_id: str | None,
        epoch: int,
        leader_id: int | None,
        endpoints: tuple[Endpoint, ...],
    ) -> Reply | None:
        if epoch < core.epoch and leader_id is not None and core.leader is None:
            leader = core.key_of(leader_id)
            become_follower(core, Trigger.LEADER_LEARNT, epoch, leader, endpoints)
            return None
        return right(core, cluster_id, epoch, leader_id, endpoints)

    plant(quorum_epochs, "_check_sender", wrong)


@planted(
    "leader moves to another epoch",
    "A leader that hears of a higher epoch takes it over and goes on leading (KIP-595, state machine).",
    caught_by=["epoch and high watermark never go back", "one leader per epoch"],
    seeds=100,
)
def _leader_moves_to_another_epoch(plant: Plant) -> None:
    right = leader_discovery.adopt

    def wrong(
        core: Core, epoch: int, leader_id: int | None, endpoints: tuple[Endpoint, ...]
    ) -> str | None:
        if isinstance(core.state, Leader) and epoch > core.epoch:
            core.epoch, core.voted = epoch, None
            core.persist()
            return None
        return right(core, epoch, leader_id, endpoints)

    for module in (leader_discovery, vote_requests):
        plant(module, "adopt", wrong)


@planted(
    "vote request ends a term",
    "A later epoch is taken from any vote request (Ongaro's dissertation, 4.2.3).",
    caught_by=["no forged frame moves a replica that is led", "an epoch is begun by a campaign"],
    seeds=3,
    faults=HOSTILE,
)
def _vote_request_ends_a_term(plant: Plant) -> None:
    plant(vote_requests, "_may_take_epoch", lambda core, event: True)


@planted(
    "an unconfirmed leader is believed",
    "BeginQuorumEpoch of a later epoch is obeyed before the leader has been asked.",
    caught_by=["no forged frame moves a replica that is led", "an epoch is begun by a campaign"],
    seeds=3,
    faults=HOSTILE,
)
def _an_unconfirmed_leader_is_believed(plant: Plant) -> None:
    right = quorum_epochs._check_sender

    def wrong(
        core: Core,
        cluster_id: str | None,
        epoch: int,
        leader_id: int | None,
        endpoints: tuple[Endpoint, ...],
    ) -> Reply | None:
        refusal = right(core, cluster_id, epoch, leader_id, endpoints)
        if refusal is None:
            leader_discovery.adopt(core, epoch, leader_id, endpoints)
        return refusal

    plant(quorum_epochs, "_check_sender", wrong)


@planted(
    "an unconfirmed end is believed",
    "EndQuorumEpoch is obeyed before the leader itself has refused a fetch.",
    caught_by=["no forged frame moves a replica that is led"],
    seeds=3,
    faults=HOSTILE,
)
def _an_unconfirmed_end_is_believed(plant: Plant) -> None:
    right = resignation.note_unconfirmed_end

    def wrong(core: Core, end: UnconfirmedEnd) -> None:
        core.known_leader.has_refused = True
        right(core, end)

    plant(quorum_epochs, "note_unconfirmed_end", wrong)


@planted(
    "pre-votes are granted in contact",
    "A follower that hears from its leader grants a pre-vote (KIP-996).",
    caught_by=["a replica in contact with its leader lets it lead"],
    seeds=60,
    faults=frozenset({"flapping", "one way", "isolate one", "loss"}),
)
def _granted_in_contact(plant: Plant) -> None:
    right = pre_vote.grants_pre_vote

    def wrong(core: Core, event: VoteRequestReceived) -> bool:
        with patch.object(core.known_leader, "last_contact_ms", None):
            return right(core, event)

    plant(vote_requests, "grants_pre_vote", wrong)


@planted(
    "trust in a leader ends early",
    "A follower grants pre-votes 4 ms before its fetch timeout is over (KIP-996).",
    caught_by=["a replica in contact with its leader lets it lead"],
    seeds=240,
    faults=frozenset({"at a deadline", "pause", "silent deaths"}),
)
def _trust_ends_early(plant: Plant) -> None:
    right = pre_vote.grants_pre_vote

    def wrong(core: Core, event: VoteRequestReceived) -> bool:
        core.now_ms += 4
        try:
            return right(core, event)
        finally:
            core.now_ms -= 4

    plant(vote_requests, "grants_pre_vote", wrong)


@planted(
    "end of an old epoch is obeyed",
    "EndQuorumEpoch of an epoch that is over makes a follower campaign (KIP-595: FENCED_LEADER_EPOCH).",
    caught_by=["a replica in contact with its leader lets it lead"],
    seeds=36,
    faults=SPLITS | {"duplicate", "delay", "clean stop"},
)
def _end_of_an_old_epoch(plant: Plant) -> None:
    right = quorum_epochs.on_end_quorum_epoch_requested

    def wrong(core: Core, event: EndQuorumEpochRequestReceived) -> None:
        if event.epoch < core.epoch and isinstance(core.state, Follower):
            core.state.fetch_deadline_ms = core.state.campaign_at_ms = core.now_ms
        right(core, event)

    plant(quorum_epochs, "on_end_quorum_epoch_requested", wrong)


@planted(
    "observers keep a leader in office",
    "Any fetch counts for the check quorum, an observer's too (KIP-595, leader progress timeout).",
    caught_by=["a leader that no majority fetches from resigns", "reads are fresh"],
    seeds=50,
    faults=frozenset({"leader among observers"}),
)
def _observers_keep_a_leader(plant: Plant) -> None:
    plant(check_quorum, "_voter_by_id", lambda core, replica: replica)


@planted(
    "leader counts no fetches",
    "The timer of the check quorum is not restarted by fetches (KIP-595, leader progress timeout).",
    caught_by=["a leader that nothing disturbs is not deposed"],
    seeds=12,
    faults=frozenset(),
)
def _leader_counts_no_fetches(plant: Plant) -> None:
    def voter_of(core: Core, leader: Leader, replica: ReplicaKey) -> ReplicaKey | None:
        if replica in core.electorate.keys:
            return replica
        return check_quorum._voter_by_id(core, replica)

    for module in (fetch_requests, snapshot_requests, replica_progress, update_voter):
        plant(module, "note_heard", voter_of)
