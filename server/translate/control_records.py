"""Control records: as the rules know them, and as batches in the log and in messages.

Pure functions. Source: KIP-595 (LeaderChangeMessage), KIP-853 (KRaftVersionRecord, VotersRecord).
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumd.raft.control import (
    KRaftVersionRecord,
    LeaderChangeRecord,
    RaftControlRecord,
    VotersRecord,
)
from quorumd.raft.types import Endpoint, ReplicaKey, Voter, VoterSet
from quorumd.server.translate.common import uuid_or_none, uuid_or_zero
from quorumd.wire import control_records


def control_records_of(batch: bytes | memoryview) -> list[tuple[int, RaftControlRecord]]:
    """The control records of a batch that the rules know, with their offsets."""
    found: list[tuple[int, RaftControlRecord]] = []
    for offset, value in control_records.decode_control_batch(batch):
        record = _from_wire(value)
        if record is not None:
            found.append((offset, record))
    return found


def _from_wire(value: object) -> RaftControlRecord | None:
    if isinstance(value, control_records.LeaderChange):
        return LeaderChangeRecord(
            ReplicaKey(value.leader_id),
            tuple(ReplicaKey(voter.voter_id) for voter in value.voters),
            tuple(ReplicaKey(voter.voter_id) for voter in value.granting_voters),
        )
    if isinstance(value, control_records.KRaftVersion):
        return KRaftVersionRecord(value.kraft_version)
    if isinstance(value, control_records.KRaftVoters):
        return voters_from_wire(value)
    return None


def voters_from_wire(record: control_records.KRaftVoters) -> VotersRecord:
    """The voter set of a KRaftVoters record. Listener names become upper case, as in Kafka."""
    voters = VoterSet.of(map(_voter_from_wire, record.voters))
    return VotersRecord(voters, record.cluster_id, record.target_voters)


def _voter_from_wire(voter: control_records.KRaftVoter) -> Voter:
    return Voter(
        ReplicaKey(voter.voter_id, uuid_or_none(voter.voter_directory_id)),
        tuple(Endpoint(at.name.upper(), at.host, at.port) for at in voter.endpoints),
        voter.kraft_version_feature.min_supported_version,
        voter.kraft_version_feature.max_supported_version,
    )


def control_batch(
    records: Sequence[RaftControlRecord], base_offset: int, epoch: int, timestamp_ms: int
) -> bytes:
    """These control records as one batch."""
    return control_records.encode_control_batch(
        [_to_wire(record) for record in records],
        base_offset=base_offset,
        epoch=epoch,
        timestamp_ms=timestamp_ms,
    )


def _to_wire(record: RaftControlRecord) -> control_records.ControlRecord:
    if isinstance(record, LeaderChangeRecord):
        return control_records.LeaderChange(
            leader_id=record.leader.id,
            voters=tuple(
                control_records.LeaderChangeVoter(voter_id=key.id) for key in record.voters
            ),
            granting_voters=tuple(
                control_records.LeaderChangeVoter(voter_id=key.id) for key in record.granting
            ),
        )
    if isinstance(record, KRaftVersionRecord):
        return control_records.KRaftVersion(kraft_version=record.level)
    return control_records.KRaftVoters(
        voters=tuple(_voter_to_wire(voter) for voter in record.voters),
        cluster_id=record.cluster_id,
        target_voters=record.target,
    )


def _voter_to_wire(voter: Voter) -> control_records.KRaftVoter:
    return control_records.KRaftVoter(
        voter_id=voter.key.id,
        voter_directory_id=uuid_or_zero(voter.key.uuid),
        endpoints=tuple(
            control_records.KRaftVoterEndpoint(name=at.name, host=at.host, port=at.port)
            for at in voter.endpoints
        ),
        kraft_version_feature=control_records.KRaftVersionFeature(
            min_supported_version=voter.min_kraft_version,
            max_supported_version=voter.max_kraft_version,
        ),
    )
