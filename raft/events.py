"""Events of a replica: everything that enters the core, in the past tense.

A request of a peer carries `reply_to`, an opaque number that comes back with the reply. A response of
a peer carries the `request_id` under which the request was sent. Absent values are None: sentinels of the
wire stop before they get here.

Events are values and never change; those of the hot paths are not frozen and are made by position, which
costs a third.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorumd.raft.control import RaftControlRecord, VotersRecord
from quorumd.raft.types import Endpoint, OffsetAndEpoch, ReplicaKey, SnapshotId, Voter


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequestReceived:
    """A replica asks for a vote, or for a pre-vote in its current epoch (KIP-595, KIP-996)."""

    reply_to: int
    cluster_id: str | None
    voter: ReplicaKey | None
    """The replica that the request is meant for, if the asker named one."""
    candidate: ReplicaKey
    epoch: int
    last: OffsetAndEpoch
    pre_vote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequestReceived:
    """A new leader announces itself (KIP-595, BeginQuorumEpoch)."""

    reply_to: int
    cluster_id: str | None
    voter: ReplicaKey | None
    leader_id: int
    epoch: int
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequestReceived:
    """A leader resigns, or a candidate shuts down (KIP-595, EndQuorumEpoch)."""

    reply_to: int
    cluster_id: str | None
    leader_id: int | None
    epoch: int
    successors: tuple[ReplicaKey, ...]
    endpoints: tuple[Endpoint, ...]


@dataclass(slots=True)
class FetchRequestReceived:
    """A replica fetches from its log end; the fetch acknowledges everything before it."""

    reply_to: int
    cluster_id: str | None
    replica: ReplicaKey | None
    """None is an observer without an id: it is served, not tracked."""
    epoch: int
    position: OffsetAndEpoch
    max_wait_ms: int
    high_watermark: int | None
    """High watermark that the replica knows: -1 none yet, None if the request does not say."""


@dataclass(slots=True, kw_only=True)
class LeaderHint:
    """Epoch and leader as the sender of a response knows them."""

    epoch: int
    leader_id: int | None = None
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponseReceived:
    """A voter responds to Vote. `error` is the name of a Kafka error code, None if there was none."""

    request_id: int
    error: str | None
    hint: LeaderHint
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponseReceived:
    """A voter responds to BeginQuorumEpoch."""

    request_id: int
    error: str | None
    hint: LeaderHint


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponseReceived:
    """A voter responds to EndQuorumEpoch."""

    request_id: int
    error: str | None
    hint: LeaderHint


@dataclass(slots=True)
class FetchedRecords:
    """Whole, checked batches of a Fetch response; `token` lets the driver find their bytes."""

    token: int
    base_offset: int
    end_offset: int
    epochs: tuple[tuple[int, int], ...]
    """(epoch, first offset) of each run of batches of one epoch, in order."""
    control: tuple[tuple[int, RaftControlRecord], ...] = ()


@dataclass(slots=True)
class FetchResponseReceived:
    """A response to Fetch: records, or where the logs diverge, or a snapshot to copy first.

    `error` is the name of a Kafka error code, None if there was none.
    """

    request_id: int
    error: str | None
    hint: LeaderHint
    high_watermark: int | None = None
    diverging: OffsetAndEpoch | None = None
    snapshot: SnapshotId | None = None
    records: FetchedRecords | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequestReceived:
    """A replica, or a client that wants the state, asks for a chunk of a snapshot (KIP-630)."""

    reply_to: int
    cluster_id: str | None
    replica: ReplicaKey | None
    epoch: int
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChunk:
    """Bytes of a snapshot from `position` on; `token` lets the driver find them."""

    snapshot: SnapshotId
    position: int
    size_bytes: int
    """Of the whole snapshot."""
    chunk_bytes: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponseReceived:
    """A response to FetchSnapshot: a chunk, unless there is an error."""

    request_id: int
    error: str | None
    hint: LeaderHint
    chunk: SnapshotChunk | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotVerified:
    """A copied snapshot is sound, and names these voters; or `problem` says what is wrong with it."""

    snapshot: SnapshotId
    voters: VotersRecord | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkNotStored:
    """There was no room for a chunk of this snapshot: what was copied of it is deleted already."""

    snapshot: SnapshotId
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpaceChanged:
    """Records find no space on this replica's disk from now on, or do again."""

    is_full: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken:
    """A snapshot of this replica's own making is complete and durable."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDeletionRequested:
    """Drop what is below `start_offset`, and all snapshots but these, to make room."""

    start_offset: int
    snapshots: tuple[SnapshotId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """No valid response: the connection failed, the time ran out, or the whole request was refused.

    `error` names a top-level error code if there was a response. `leader_id` is the leader that a
    refusal named, if any.
    """

    request_id: int
    reason: str
    error: str | None = None
    leader_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRefused:
    """The connection to this replica was reset and a new one was refused: its process is gone."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLost:
    """The connection to this replica is gone; its process may live."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionMade:
    """A connection to this replica was made."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddVoterRequested:
    """Make an observer a voter (KIP-856, AddVoter). The reply comes after `timeout_ms` at the latest."""

    reply_to: int
    cluster_id: str | None
    voter: Voter
    timeout_ms: int
    ack_when_committed: bool = True
    """False: reply as soon as the record is in the leader's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveVoterRequested:
    """Make a voter an observer (KIP-856, RemoveVoter)."""

    reply_to: int
    cluster_id: str | None
    key: ReplicaKey
    timeout_ms: int
    force: bool = False
    """Do it although too few of the voters that remain are there to commit anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVoterRequested:
    """A replica says where it is reached now (KIP-853, UpdateRaftVoter)."""

    reply_to: int
    cluster_id: str | None
    epoch: int
    voter: Voter


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentRequested:
    """Change the voters, one after the other, to these ids; None ends what is under way (KIP-642)."""

    reply_to: int
    target: tuple[int, ...] | None
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRequested:
    """Hand leadership to this voter, or to any; a key without uuid is the only one under its id."""

    reply_to: int
    cluster_id: str | None
    to: ReplicaKey | None
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterChangeResponseReceived:
    """The leader's response to UpdateVoter, AddVoter or RemoveVoter."""

    request_id: int
    error: str | None
    message: str | None = None
    hint: LeaderHint | None = None


@dataclass(slots=True)
class AppendRequested:
    """Clients' batches of one turn of the driver, `record_count` offsets long."""

    token: int
    record_count: int


@dataclass(slots=True)
class WriteCompleted:
    """This write, and all before it, are on disk."""

    write: int


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The deadline that the state machine asked for has passed."""


@dataclass(frozen=True, slots=True)
class ResignationRequested:
    """Give leadership away, because the node shuts down or cannot write any more."""

    reason: str
    shutting_down: bool


Event = (
    VoteRequestReceived
    | BeginQuorumEpochRequestReceived
    | EndQuorumEpochRequestReceived
    | FetchRequestReceived
    | VoteResponseReceived
    | BeginQuorumEpochResponseReceived
    | EndQuorumEpochResponseReceived
    | FetchResponseReceived
    | FetchSnapshotRequestReceived
    | FetchSnapshotResponseReceived
    | SnapshotVerified
    | ChunkNotStored
    | DiskSpaceChanged
    | SnapshotTaken
    | LogDeletionRequested
    | RequestFailed
    | ConnectionRefused
    | ConnectionLost
    | ConnectionMade
    | AddVoterRequested
    | RemoveVoterRequested
    | UpdateVoterRequested
    | ReassignmentRequested
    | TransferRequested
    | VoterChangeResponseReceived
    | AppendRequested
    | WriteCompleted
    | TimerFired
    | ResignationRequested
)
