"""Planted bugs of replication and commitment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from quorumd.raft import (
    bootstrap,
    fetch_requests,
    fetching,
    high_watermark,
    leadership,
    quorum,
    replica_progress,
)
from quorumd.raft.core import Core
from quorumd.raft.core_parts import InFlightRequest
from quorumd.raft.effects import Effect, Fetch, Halt, Peer
from quorumd.raft.log_view import LogView
from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Leader
from quorumd.raft.types import OffsetAndEpoch, ReplicaKey, VoterSet
from simulation.planted.table import POWER, SPLITS, Plant, planted


@planted(
    "leader counts its log before the fsync",
    "A leader's own log end counts for the majority at once (KIP-595, Fetch, step 4).",
    caught_by=["the high watermark is synced by a majority"],
    seeds=8,
)
def _leader_counts_unsynced(plant: Plant) -> None:
    right = high_watermark.advance_high_watermark

    def wrong(core: Core, leader: Leader) -> None:
        core.log.synced_end_offset = core.log.end_offset
        right(core, leader)

    plant(high_watermark, "advance_high_watermark", wrong)
    plant(fetch_requests, "advance_high_watermark", wrong)


@planted(
    "follower acknowledges before its fsync",
    "A Fetch leaves before the records that it acknowledges are on disk (KIP-595, Fetch request).",
    caught_by=["the high watermark is synced by a majority"],
    seeds=5,
)
def _follower_acknowledges_unsynced(plant: Plant) -> None:
    right = Core.send

    def wrong(core: Core, to: Peer, request: Any, after: int) -> None:
        right(core, to, request, core.writes.state if isinstance(request, Fetch) else after)

    plant(Core, "send", wrong)


@planted(
    "half of the voters commit",
    "The high watermark is what half of an even number of voters has (KIP-595, Fetch, step 4).",
    caught_by=["the high watermark is synced by a majority"],
    seeds=15,
)
def _half_commits(plant: Plant) -> None:
    plant(quorum, "majority_end_offset", lambda ends: sorted(ends)[len(ends) // 2])


@planted(
    "leader compares offsets alone",
    "A follower's log counts as a prefix whatever its last epoch is (KIP-595, Fetch, step 3).",
    caught_by=["log matching", "a committed prefix is identical everywhere"],
    seeds=24,
    faults=SPLITS,
)
def _leader_compares_offsets(plant: Plant) -> None:
    plant(LogView, "contains", lambda log, position: position.offset <= log.end_offset)


@planted(
    "follower keeps a diverging tail",
    "A follower does not truncate when its leader says so (KIP-595, Fetch response handling, step 2).",
    caught_by=["liveness"],
    seeds=24,
    faults=SPLITS,
)
def _follower_keeps_a_diverging_tail(plant: Plant) -> None:
    def wrong(core: Core, request: InFlightRequest, diverging: OffsetAndEpoch) -> None:
        core.back_off(request)

    plant(fetching, "_truncate", wrong)


@planted(
    "new storage id counts for the old",
    "A leader knows voters by id alone, so an empty disk stands in for a lost one (KIP-856, progress"
    " is kept by id and storage id).",
    caught_by=["the high watermark is synced by a majority", "a leader has every committed record"],
    seeds=10,
    faults=frozenset({"lost disk"}),
)
def _new_storage_id_counts(plant: Plant) -> None:
    right = replica_progress.note_progress

    def wrong(core: Core, leader: Leader, replica: ReplicaKey, end_offset: int) -> None:
        right(core, leader, core.key_of(replica.id), end_offset)

    plant(fetch_requests, "note_progress", wrong)


@planted(
    "old copy goes unnoticed",
    "A leader says nothing when a replica has less than it had acknowledged (KIP-595: what is"
    " acknowledged is on disk).",
    caught_by=["an old copy of a directory is noticed"],
    seeds=8,
)
def _old_copy_goes_unnoticed(plant: Plant) -> None:
    plant(
        replica_progress,
        "log_regression",
        lambda replica, acknowledged, end_offset: "a replica went back",
    )


@planted(
    "first voter set names any replica that was seen",
    "The first voter set does not wait for every configured voter, and grows by several at once"
    " (KIP-856, bootstrapping, one change at a time).",
    caught_by=[
        "one voter changes at a time",
        "one leader per epoch",
        "quorum.voters names the ids that vote",
    ],
    seeds=10,
)
def _first_voter_set_is_partial(plant: Plant) -> None:
    right = bootstrap.write_first_voters

    def wrong(core: Core, leader: Leader) -> None:
        configured = core.config.configured_voters
        seen = [
            v
            for v in configured
            if v.key.id in core.bootstrap.known_uuids or v.key.id == core.local.id
        ]
        config = replace(core.config, configured_voters=VoterSet.of(seen))
        with patch.object(core, "config", config):
            right(core, leader)

    plant(leadership, "write_first_voters", wrong)
    plant(bootstrap, "write_first_voters", wrong)


@planted(
    "recorded offset is one too many",
    "A start halts although the log ends just at the recorded committed offset (KIP-856, disk failures).",
    caught_by=["no node stops without cause"],
    seeds=20,
    faults=POWER,
)
def _recorded_offset_is_one_too_many(plant: Plant) -> None:
    right = RaftNode.start

    def wrong(replica: RaftNode, now_ms: int) -> list[Effect]:
        if 0 < replica.core.log.end_offset == replica.core.recorded_offset:
            return [Halt(reason="the log is shorter than what was committed")]
        return right(replica, now_ms)

    plant(RaftNode, "start", wrong)


@planted(
    "truncation forgets one epoch only",
    "Of several epochs that a truncation drops only the last one leaves the epoch cache (KIP-320).",
    caught_by=["liveness"],
    seeds=12,
    faults=frozenset({"elected in vain"}),
)
def _one_epoch_is_forgotten(plant: Plant) -> None:
    right = LogView.truncate

    def wrong(log: LogView, end_offset: int) -> bool:
        kept = [epoch for epoch in log.epoch_starts if epoch[1] >= end_offset][:-1]
        is_voter_set_dropped = right(log, end_offset)
        log.epoch_starts += kept
        return is_voter_set_dropped

    plant(LogView, "truncate", wrong)
