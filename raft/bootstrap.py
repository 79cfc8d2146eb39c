"""Bootstrap of the first voter set: a new quorum writes its voters into its log.

The storage ids of voters that configuration names by id are not known: each has to show its own once.
Clients write nothing before every voter has stored that set. Source: KIP-856, bootstrapping.
"""

from __future__ import annotations

from quorumd.raft.control import KRaftVersionRecord, VotersRecord
from quorumd.raft.control_appends import append_control
from quorumd.raft.core import Core
from quorumd.raft.replica_progress import synced_end_offset
from quorumd.raft.roles import Leader
from quorumd.raft.types import ReplicaKey, Voter, VoterSet


def write_first_voters(core: Core, leader: Leader) -> None:
    """Name the voters of a new quorum in its log once each configured id has shown its storage id.

    Until that record is committed it may be replaced when an id turns up under another storage id:
    nothing can have been written under the old one. Source: KIP-856, bootstrapping.
    """
    configured = core.config.initial_voters
    first = core.log.voters_offset < 0
    if not first and all(
        synced_end_offset(core, leader, key) > core.log.voters_offset for key in core.voters.keys
    ):
        return
    named = [voter.key for voter in configured if voter.key.uuid is not None]
    keys = {key.id: key for key in (*core.bootstrap.known_uuids.values(), *named, core.local)}
    if any(voter.key.id not in keys for voter in configured):
        return
    voters = VoterSet.of(
        Voter(
            keys[voter.key.id],
            core.config.endpoints if voter.key.id == core.local.id else voter.endpoints,
        )
        for voter in configured
    )
    if not first and (voters.keys == core.voters.keys or voters.ids != core.voters.ids):
        return
    # A set that is replaced may be committed without this leader knowing it: its cluster id stays.
    logged = core.electorate.entry.record.cluster_id
    cluster_id = (
        core.cluster_id or logged or core.bootstrap.heard_cluster_id or core.config.new_cluster_id
    )
    record = VotersRecord(voters, cluster_id or None)
    append_control(core, leader, (KRaftVersionRecord(1), record) if first else (record,))


def learn_voter(core: Core, key: ReplicaKey, cluster_id: str | None) -> None:
    """Remember the uuid and the cluster id that a replica shows: a first leader needs both."""
    if key.uuid is not None and key.id in core.config.initial_voters.ids:
        core.bootstrap.known_uuids[key.id] = key
    if core.bootstrap.heard_cluster_id is None and core.voters.find(key) is not None:
        core.bootstrap.heard_cluster_id = cluster_id


def note_storage_id(
    core: Core, leader: Leader, replica: ReplicaKey, cluster_id: str | None
) -> None:
    """While the first voter set is not committed, the storage id that fetches now is the right one.

    Not so while the one that the log names under that id fetches, too: two disks must not take turns.
    """
    silent_since_ms = core.now_ms - core.config.fetch_timeout_ms
    for key in core.electorate.keys:
        known = leader.progress.get(key)
        fetched = None if known is None else known.last_fetch_ms
        is_rival = key.id == replica.id and key.uuid not in (None, replica.uuid)
        if is_rival and fetched is not None and fetched > silent_since_ms:
            return
    learn_voter(core, replica, cluster_id)
    write_first_voters(core, leader)


def bootstrap_problem(core: Core) -> str:
    """The reason why clients cannot write yet, in words."""
    missing = [
        str(key.id)
        for key in core.voters.keys
        if key.uuid is None and not core.is_local(key) and key.id not in core.bootstrap.known_uuids
    ]
    if missing:
        return f"this quorum is new and waits for voter {', '.join(missing)} to be seen once"
    return "this quorum is new and waits until every voter has stored the first voter set"
