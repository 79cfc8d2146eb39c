"""Planted bugs of changes of the voter set, of joining, and of witnesses."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from quorumd.raft import (
    election_timeout,
    fetch_requests,
    high_watermark,
    leadership_transfer,
)
from quorumd.raft.bootstrap import bootstrap_problem
from quorumd.raft.core import Core
from quorumd.raft.effects import AddVoter, RemoveVoter, UpdateVoter
from quorumd.raft.electorate import Electorate
from quorumd.raft.errors import Refusal
from quorumd.raft.log_view import LogView
from quorumd.raft.roles import Leader, VoterChange
from quorumd.raft.types import VoterSet
from quorumd.raft.voter_changes import (
    add_voter,
    auto_join,
    checks,
    pending_changes,
    reassignment,
    remove_voter,
    update_voter,
    voter_sets,
)
from simulation.planted import table
from simulation.planted.table import Plant

CHANGES = frozenset({"add voter", "remove voter", "remove leader", "reassign", "transfer leader"})
LEADER_FAILS = "struck at a change"

planted = partial(table.planted, membership=True)


@planted(
    "two changes of the voters at once",
    "The next voter set is appended before the last one is committed (KIP-856, one change at a time).",
    caught_by=["one voter changes at a time"],
    seeds=20,
    faults=CHANGES,
)
def _two_changes_at_once(plant: Plant) -> None:
    def wrong(core: Core, leader: Leader) -> str | None:
        return bootstrap_problem(core) if core.is_bootstrapping else None

    for module in (pending_changes, update_voter):
        plant(module, "pending_change_problem", wrong)


@planted(
    "voters change before a commit of the epoch",
    "A new leader changes the voters before it has committed a record of its own epoch (Ongaro, bug in"
    " single-server membership changes).",
    caught_by=["a leader commits in its epoch before it changes the voters"],
    seeds=60,
    faults=frozenset({"reassign", "kill", LEADER_FAILS}),
)
def _changes_before_a_commit(plant: Plant) -> None:
    right = checks.pending_change_problem

    def wrong(core: Core, leader: Leader) -> str | None:
        with patch.object(core, "high_watermark", core.committed_offset):
            return right(core, leader)

    for module in (pending_changes, update_voter):
        plant(module, "pending_change_problem", wrong)


@planted(
    "removed leader counts itself",
    "A leader that is removed still counts for the majority (KIP-856, high watermark).",
    caught_by=["the high watermark is synced by a majority"],
    seeds=10,
    faults=frozenset({"remove leader", LEADER_FAILS}),
)
def _removed_leader_counts_itself(plant: Plant) -> None:
    right = high_watermark.advance_high_watermark

    def wrong(core: Core, leader: Leader) -> None:
        with patch.object(core, "_electorate", replace(core.electorate, has_local=True)):
            right(core, leader)

    for module in (high_watermark, fetch_requests):
        plant(module, "advance_high_watermark", wrong)


@planted(
    "removed leader does not campaign",
    "A removed voter does not campaign, though the others lack the record and cannot win against its"
    " longer log (Ongaro's dissertation, 4.2.2).",
    caught_by=["liveness"],
    seeds=60,
    faults=frozenset({"remove leader", LEADER_FAILS}),
)
def _removed_leader_does_not_campaign(plant: Plant) -> None:
    def wrong(core: Core) -> bool:
        is_named = core.log.voters_offset >= 0 or core.config.is_bootstrap
        return is_named and core.electorate.has_local

    plant(Core, "is_voter", property(wrong))


@planted(
    "truncation keeps the voter set",
    "A truncation does not bring the former voter set back (KIP-856, internal listener).",
    caught_by=["the voters are those that the log names last"],
    seeds=12,
    faults=frozenset({"reassign", LEADER_FAILS}),
)
def _truncation_keeps_the_voter_set(plant: Plant) -> None:
    right = LogView.truncate

    def wrong(log: LogView, end_offset: int) -> bool:
        entries = list(log.voter_entries)
        right(log, end_offset)
        log.voter_entries[:] = entries
        return False

    plant(LogView, "truncate", wrong)


@planted(
    "voter set counts when it is committed",
    "A voter set counts only once it is committed (KIP-856: as soon as it is in the log).",
    caught_by=["the voters are those that the log names last"],
    seeds=5,
    faults=CHANGES,
)
def _voter_set_counts_when_committed(plant: Plant) -> None:
    def wrong(core: Core) -> Electorate:
        return Electorate.of(core.committed_voters, core.config)

    plant(Core, "electorate", property(wrong))


@planted(
    "voter is added without catching up",
    "An observer becomes a voter however far behind it is (KIP-642, observer promotion).",
    caught_by=["a voter is added when it has caught up"],
    seeds=40,
    faults=frozenset({"add voter", "isolate one"}),
)
def _voter_is_added_without_catching_up(plant: Plant) -> None:
    for module in (add_voter, reassignment):
        plant(module, "catch_up_problem", lambda core, leader, key: None)


@planted(
    "added voter is acknowledged before the commit",
    "The response to AddVoter leaves when the record is in the log (KIP-856: when it is committed).",
    caught_by=["an acknowledged change is committed"],
    seeds=20,
    faults=frozenset({"add voter"}),
)
def _added_voter_is_acknowledged_before_the_commit(plant: Plant) -> None:
    right = pending_changes._reply_to_committed

    def wrong(core: Core, leader: Leader) -> None:
        for change in leader.changes:
            change.ack_when_committed = False
        right(core, leader)

    plant(pending_changes, "_reply_to_committed", wrong)


@planted(
    "last voter of a configured id is removed",
    "An id of quorum.voters may vanish wholly (KIP-856, bootstrapping).",
    caught_by=["quorum.voters names the ids that vote"],
    seeds=20,
    faults=frozenset({"remove voter", "remove leader"}),
)
def _configured_id_is_removed(plant: Plant) -> None:
    right = remove_voter.refusal_of

    def wrong(core: Core, leader: Leader, change: VoterChange) -> Refusal | None:
        config = replace(core.config, configured_voters=VoterSet())
        with patch.object(core, "config", config):
            return right(core, leader, change)

    plant(remove_voter, "refusal_of", wrong)


@planted(
    "living voter is doubled",
    "A second storage id is added under the id of a voter that is alive (KIP-856, disk failure recovery).",
    caught_by=["a storage id is added only if that of the same id is silent"],
    seeds=60,
    faults=frozenset({"add voter"}),
)
def _living_voter_is_doubled(plant: Plant) -> None:
    plant(add_voter, "is_alive", lambda core, leader, voter: False)


@planted(
    "removed replica joins again",
    "A replica that knows of its removal asks to vote again (KIP-853, automatic joining).",
    caught_by=["voters change as was asked for"],
    seeds=120,
    faults=frozenset({"replace voter", "remove voter"}),
)
def _removed_replica_joins_again(plant: Plant) -> None:
    right = auto_join.registration_request

    def wrong(core: Core) -> UpdateVoter | AddVoter | RemoveVoter | None:
        with patch.object(core, "was_removed", False):
            return right(core)

    plant(auto_join, "registration_request", wrong)


@planted(
    "moved voter says nothing",
    "A voter does not register its new endpoints with its leader (KIP-853, UpdateRaftVoter).",
    caught_by=["liveness"],
    seeds=20,
    faults=frozenset({"move"}),
)
def _moved_voter_says_nothing(plant: Plant) -> None:
    right = auto_join.registration_request

    def wrong(core: Core) -> UpdateVoter | AddVoter | RemoveVoter | None:
        request = right(core)
        is_voter = core.voters.find(core.local) is not None
        return None if is_voter and isinstance(request, UpdateVoter) else request

    plant(auto_join, "registration_request", wrong)


@planted(
    "reassignment forgets its target",
    "A step of a reassignment drops what it is a step to, so that it stops there (KIP-642).",
    caught_by=["voters change as was asked for"],
    seeds=20,
    faults=frozenset({"reassign"}),
)
def _reassignment_forgets_its_target(plant: Plant) -> None:
    right = voter_sets.append_voters

    def wrong(core: Core, leader: Leader, voters: VoterSet, *rest: Any) -> None:
        is_step = voters.keys != core.voters.keys
        right(core, leader, voters, *((None,) if is_step else rest))

    plant(reassignment, "append_voters", wrong)


@planted(
    "witness campaigns freely",
    "A witness campaigns as any other voter does.",
    caught_by=["a witness leads only where no other voter can"],
    seeds=40,
    faults=frozenset(),
)
def _witness_campaigns_freely(plant: Plant) -> None:
    plant(election_timeout, "may_campaign", lambda core: True)


@planted(
    "witness holds on to leadership",
    "A witness that has to lead does not hand over.",
    caught_by=["liveness"],
    seeds=12,
    faults=frozenset({"lone witness"}),
)
def _witness_holds_on(plant: Plant) -> None:
    for module in (pending_changes, leadership_transfer):
        plant(module, "hand_over", lambda core, leader, transfer: False)


@planted(
    "leader hands over too early",
    "A transfer does not wait until the successor has everything (Ongaro's dissertation, 3.10).",
    caught_by=["a successor has everything"],
    seeds=36,
    faults=frozenset({"transfer leader", "slow disk", "delay"}),
)
def _hands_over_too_early(plant: Plant) -> None:
    plant(leadership_transfer, "synced_end_offset", lambda core, leader, key: core.log.end_offset)
