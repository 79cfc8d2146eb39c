"""Control records as text and as JSON, and voter sets as the difference to the set before.

Source: KIP-595 (LeaderChange), KIP-856 (voters are added and removed one by one; the log holds the
whole set each time), KIP-630 (snapshots).
"""

from __future__ import annotations

from typing import Any

from quorumd.cli.text import counted, fields_as_json, printable, timestamp_text
from quorumd.client.voter_sets import voter_set_changes
from quorumd.raft.types import Endpoint, ReplicaKey
from quorumd.wire.control_records import (
    ControlRecord,
    ControlType,
    KRaftVersion,
    KRaftVoter,
    KRaftVoters,
    LeaderChange,
    ProducerStates,
    SnapshotFooter,
    SnapshotHeader,
    UnknownControl,
)


def _changes(before: KRaftVoters | None, after: KRaftVoters) -> list[tuple[str, KRaftVoter]]:
    """Every change with the voter that it is about; everything is added to a set that isn't known."""
    old = {_key(voter): voter for voter in before.voters} if before is not None else {}
    new = {_key(voter): voter for voter in after.voters}
    return [(change, (old | new)[key]) for change, key in voter_set_changes(old, new)]


def _key(voter: KRaftVoter) -> ReplicaKey:
    return ReplicaKey(voter.voter_id, voter.voter_directory_id)


def voter_text(voter: KRaftVoter) -> str:
    """(id, uuid) and where the voter listens."""
    endpoints = [
        str(Endpoint(printable(at.name), printable(at.host), at.port)) for at in voter.endpoints
    ]
    feature = voter.kraft_version_feature
    versions = f"{feature.min_supported_version}..{feature.max_supported_version}"
    return " ".join([str(_key(voter)), *endpoints, f"kraft.version {versions}"])


def control_lines(record: ControlRecord, voters_before: KRaftVoters | None) -> list[str]:
    """The record in words, one line and for a voter set one more for each change."""
    match record:
        case LeaderChange():
            voters = _ids(record.voters)
            granted = _ids(record.granting_voters)
            return [
                f"LeaderChange leader {record.leader_id}, voters {voters}, granted by {granted}"
            ]
        case SnapshotHeader():
            time = timestamp_text(record.last_contained_log_timestamp)
            return [f"SnapshotHeader last contained log timestamp {time}"]
        case SnapshotFooter():
            return ["SnapshotFooter"]
        case KRaftVersion():
            return [f"KRaftVersion {record.kraft_version}"]
        case KRaftVoters():
            return _voters_lines(record, voters_before)
        case ProducerStates():
            return _producers_lines(record)
        case UnknownControl(ControlType.FORMER_KRAFT_VERSION):
            return ["KRaftVersion of the quorum that this log was restored from"]
        case UnknownControl(ControlType.FORMER_KRAFT_VOTERS):
            return ["KRaftVoters of the quorum that this log was restored from"]
        case UnknownControl():
            return [f"unknown control type {record.type}, value {printable(record.raw)}"]


def _voters_lines(record: KRaftVoters, before: KRaftVoters | None) -> list[str]:
    ids = ", ".join(str(_key(voter)) for voter in record.voters)
    head = f"KRaftVoters {ids or 'none'}"
    if record.cluster_id is not None:
        head += f", cluster id {printable(record.cluster_id)}"
    if record.target_voters is not None:
        head += f", target voters {' '.join(map(str, record.target_voters))}"
    changes = _changes(before, record)
    if not changes:
        return [f"{head}, unchanged"]
    return [head, *(f"  {kind} {voter_text(voter)}" for kind, voter in changes)]


def _producers_lines(record: ProducerStates) -> list[str]:
    lines = [f"ProducerStates of {counted(len(record.producers), 'producer')}"]
    for producer in record.producers:
        batches = ", ".join(
            f"sequence {batch.first_sequence}-{batch.last_sequence}"
            f" at offset {batch.base_offset}-{batch.last_offset}"
            for batch in producer.batches
        )
        lines.append(f"  producer {producer.producer_id} epoch {producer.epoch}: {batches}")
    return lines


def _ids(voters: tuple[Any, ...]) -> str:
    return " ".join(str(voter.voter_id) for voter in voters) or "nobody"


def control_as_dict(record: ControlRecord, voters_before: KRaftVoters | None) -> dict[str, Any]:
    """The record for programs: its type, its fields, and for a voter set the changes."""
    if isinstance(record, UnknownControl):
        raw = None if record.raw is None else record.raw.hex()
        return {"type": "Unknown", "number": record.type, "value_hex": raw}
    fields = fields_as_json(record)
    described = {"type": type(record).__name__, **fields}
    if isinstance(record, KRaftVoters):
        described["changes"] = [
            {"kind": kind, **fields_as_json(voter)}
            for kind, voter in _changes(voters_before, record)
        ]
    return described
