"""Leaders and voters over time, out of control records: a pure fold, row lists in and row lists out.

The rows are those of the tables `leadership` and `voter_sets`, as pyarrow gives and takes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from quorumd.client.voter_sets import voter_set_changes
from quorumd.raft.types import uuid_to_text
from quorumd.wire.control_records import (
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    decode_control_record,
)

TableRow = dict[str, Any]


Voters = dict[tuple[int, str | None], list[TableRow] | None]
"""Endpoints by id and storage id."""


class ControlRow(NamedTuple):
    """A control record as the table `records` has it."""

    offset: int
    timestamp: datetime
    epoch: int
    batch_base_offset: int
    control_type: int
    key: bytes
    value: bytes | None


class LeadershipHistory(NamedTuple):
    """Rows of `leadership` and of `voter_sets`."""

    leadership: list[TableRow]
    voter_sets: list[TableRow]


def extend_history(before: LeadershipHistory, rows: Iterable[ControlRow]) -> LeadershipHistory:
    """The tables after these records, given in any order, all behind the earlier ones.

    Raises MalformedMessage for a record that is not what its type says.
    """
    leadership, changes = list(before.leadership), list(before.voter_sets)
    decoded = [
        (row, decode_control_record(row.key, row.value))
        for row in sorted(rows, key=lambda row: row.offset)
    ]
    with_voters = {row.batch_base_offset for row, each in decoded if isinstance(each, KRaftVoters)}
    for row, record in decoded:
        if isinstance(record, LeaderChange):
            # The first leader writes the voter set right behind its own record.
            if row.batch_base_offset not in with_voters and not _is_in_log(changes):
                changes += _changes(changes, row, _configured(record))
            _take_leader(leadership, changes, row, record)
        elif isinstance(record, KRaftVoters):
            voters: Voters = {
                (voter.voter_id, _text(voter.voter_directory_id)): [
                    dataclasses.asdict(endpoint) for endpoint in voter.endpoints
                ]
                for voter in record.voters
            }
            changes += _changes(changes, row, voters)
            _fill_in_storage_id(leadership, changes)
    return LeadershipHistory(leadership, changes)


def voters_after(changes: Sequence[TableRow]) -> Voters:
    """The voter set that these rows of `voter_sets` lead to."""
    voters: Voters = {}
    for row in changes:
        key = (row["voter_id"], row["storage_id"])
        if row["change"] == "REMOVE":
            del voters[key]
            continue
        if row["change"] == "UPDATE":
            # A storage id that was not known before.
            voters.pop((row["voter_id"], None), None)
        voters[key] = row["endpoints"]
    return voters


def _changes(before: Sequence[TableRow], row: ControlRow, after: Voters) -> list[TableRow]:
    """Changes from one voter set to the other: removals, then the rest, each by id."""
    named = {key: (key[1], endpoints) for key, endpoints in after.items()}
    known = {key: (key[1], endpoints) for key, endpoints in voters_after(before).items()}
    for key in after:
        unnamed = known.get((key[0], None))
        if key[1] is not None and unnamed is not None:
            # Its storage id was not known before: another value, not another voter.
            known[key] = unnamed
    for voter_id, storage_id in after:
        if storage_id is not None:
            known.pop((voter_id, None), None)
    changes = voter_set_changes(known, named)
    changes.sort(key=lambda change: (change[0] != "REMOVE", _order(change[1])))
    return [_change(row, change, key, (known | named)[key][1]) for change, key in changes]


def _change(row: ControlRow, change: str, key: tuple[int, str | None], endpoints: Any) -> TableRow:
    return {
        "offset": row.offset,
        "timestamp": row.timestamp,
        "epoch": row.epoch,
        "change": change,
        "voter_id": key[0],
        "storage_id": key[1],
        "endpoints": endpoints,
    }


def _take_leader(
    leadership: list[TableRow], changes: Sequence[TableRow], row: ControlRow, record: LeaderChange
) -> None:
    if leadership:
        closed = {"to_offset": row.offset, "to_time": row.timestamp}
        leadership[-1] = {**leadership[-1], **closed}
    known = dict(list(voters_after(changes)))
    voters = [_voter(each, known) for each in record.voters]
    storage_ids = {voter["id"]: voter["storage_id"] for voter in voters}
    leadership.append(
        {
            "epoch": row.epoch,
            "leader_id": record.leader_id,
            "storage_id": storage_ids.get(record.leader_id, known.get(record.leader_id)),
            "from_offset": row.offset,
            "to_offset": None,
            "from_time": row.timestamp,
            "to_time": None,
            "granting_voters": [_voter(each, known) for each in record.granting_voters],
            "voters": voters,
        }
    )


def _fill_in_storage_id(leadership: list[TableRow], changes: Sequence[TableRow]) -> None:
    """Voters become known by their storage ids when the first leader has written them down."""
    if leadership and leadership[-1]["storage_id"] is None:
        known = dict(list(voters_after(changes)))
        leadership[-1] = {**leadership[-1], "storage_id": known.get(leadership[-1]["leader_id"])}


def _voter(voter: LeaderChangeVoter, known: dict[int, str | None]) -> TableRow:
    """The storage id from the record, or else from the voter set of that moment."""
    storage_id = _text(voter.voter_directory_id) or known.get(voter.voter_id)
    return {"id": voter.voter_id, "storage_id": storage_id}


def _configured(record: LeaderChange) -> Voters:
    return {(voter.voter_id, _text(voter.voter_directory_id)): None for voter in record.voters}


def _is_in_log(changes: Sequence[TableRow]) -> bool:
    """True if the voter set is in the log: only then are there endpoints."""
    return any(row["endpoints"] is not None for row in changes)


def _text(uuid: UUID | None) -> str | None:
    return uuid_to_text(uuid) if uuid is not None and uuid.int else None


def _order(key: tuple[int, str | None]) -> tuple[int, str]:
    return key[0], key[1] or ""
