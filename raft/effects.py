"""Effects that the core asks for: every event makes an ordered list of these.

Writes are numbered in the order in which they must reach the disk. An effect that may leave only after a
write names it in `after` (0: none); the driver holds the effect until that write, and so every earlier
one, is on disk. Durability is thus a value, not an order of calls. Where records wait for space on a full
disk, a quorum state may be on disk before them: then what waits for it alone may leave.

Effects are values and never change; those of the hot paths are not frozen and are made by position, which
costs a third.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from quorumd.raft.control import RaftControlRecord
from quorumd.raft.errors import KafkaError
from quorumd.raft.roles import Role
from quorumd.raft.types import Endpoint, OffsetAndEpoch, ReplicaKey, SnapshotId, VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistQuorumState:
    """Replace the quorum state on disk.

    `applied_offset` is a committed offset (exclusive) known now: nothing below it is ever truncated.
    """

    write: int
    epoch: int
    leader: ReplicaKey | None
    voted: ReplicaKey | None
    applied_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendControl:
    """Append these control records as one batch."""

    write: int
    base_offset: int
    epoch: int
    records: tuple[RaftControlRecord, ...]


@dataclass(slots=True)
class AppendClient:
    """Append the clients' batches under this token, the first record at `base_offset`."""

    write: int
    base_offset: int
    epoch: int
    token: int


@dataclass(slots=True)
class AppendFetched:
    """Append the batches under this token of a Fetch response."""

    write: int
    token: int
    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """Drop everything from `end_offset` on."""

    write: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Ask for a vote in `epoch`, or for a pre-vote; `last` is where the asker's log ends."""

    epoch: int
    last: OffsetAndEpoch
    pre_vote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpoch:
    """Announce to a voter that this replica leads `epoch`."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpoch:
    """Announce that the leader of `epoch` resigned; `leader_id` is None when a candidate shuts down."""

    epoch: int
    leader_id: int | None
    successors: tuple[ReplicaKey, ...]


@dataclass(slots=True)
class Fetch:
    """Ask for records from `position` on; everything before it is on this replica's disk.

    `high_watermark` is the one that this replica knows, -1 if none.
    """

    epoch: int
    position: OffsetAndEpoch
    high_watermark: int


@dataclass(slots=True)
class Probe(Fetch):
    """Ask the leader for a sign of life, from the end of what is on this replica's disk.

    The Fetch for what follows waits for space there. What the response brings is not taken.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshot:
    """Ask for up to `max_bytes` bytes of a snapshot from byte `position` on."""

    epoch: int
    snapshot: SnapshotId
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVoter:
    """Register the endpoints of this replica with the leader of `epoch`."""

    epoch: int
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddVoter:
    """Ask the leader to make this replica a voter; it need not wait until that is committed."""

    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveVoter:
    """Ask the leader to remove the voter whose place this replica has taken."""

    key: ReplicaKey


Request = (
    Vote
    | BeginQuorumEpoch
    | EndQuorumEpoch
    | Fetch
    | FetchSnapshot
    | UpdateVoter
    | AddVoter
    | RemoveVoter
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapServer:
    """A configured bootstrap address, by its position in the list: a peer whose key is not known."""

    index: int

    def __str__(self) -> str:
        return f"bootstrap server {self.index + 1}"


Peer = ReplicaKey | BootstrapServer


@dataclass(slots=True)
class SendRequest:
    """Send to a peer; the response, or failure, comes back as an event with the same id."""

    request_id: int
    to: Peer
    request: Request
    after: int

    @property
    def waits_for_records(self) -> bool:
        """True if `after` may be a write of records; False if it is that of the quorum state."""
        return type(self.request) in (Fetch, FetchSnapshot)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelHeldRequests:
    """Requests that still wait for a write are void.

    A Fetch acknowledges what it names; held over a change of epoch it would acknowledge to a deposed
    leader what the new one may lack.
    """


@dataclass(slots=True)
class Reply:
    """The part that all replies share. `error` is that of the partition, `top_level_error` of the whole."""

    epoch: int
    leader_id: int | None
    leader_endpoints: tuple[Endpoint, ...]
    error: KafkaError | None = None
    top_level_error: KafkaError | None = None


class ReplyFields(TypedDict):
    """The fields of `Reply`, as keyword arguments for any kind of reply."""

    epoch: int
    leader_id: int | None
    leader_endpoints: tuple[Endpoint, ...]
    error: KafkaError | None
    top_level_error: KafkaError | None


@dataclass(slots=True, kw_only=True)
class VoteReply(Reply):
    """The reply to Vote."""

    granted: bool = False


@dataclass(slots=True)
class FetchReply(Reply):
    """The reply to Fetch: records from `read_from` (inclusive, None: none) to `read_to` (exclusive)."""

    high_watermark: int | None = None
    log_start_offset: int | None = None
    diverging: OffsetAndEpoch | None = None
    snapshot: SnapshotId | None = None
    """The snapshot to fetch first."""
    read_from: int | None = None
    read_to: int = 0


@dataclass(slots=True, kw_only=True)
class SnapshotReply(Reply):
    """The reply to FetchSnapshot. Without an error: the requested bytes of this snapshot."""

    snapshot: SnapshotId | None = None


@dataclass(slots=True, kw_only=True)
class VoterChangeReply(Reply):
    """The reply to a change of the voter set or the leader; `message` says why it was refused."""

    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSnapshotChunk:
    """Write the chunk under this token to byte `position` of an unfinished snapshot."""

    write: int
    snapshot: SnapshotId
    position: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSnapshot:
    """Delete the file of an unfinished snapshot."""

    write: int
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySnapshot:
    """Check a copied snapshot: is it sound, and which voters does it name?"""

    snapshot: SnapshotId
    after: int

    @property
    def waits_for_records(self) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetLog:
    """Make a verified snapshot a complete one; then drop the whole log and begin it at its end."""

    write: int
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLogPrefix:
    """Drop what is below `start_offset`, and all snapshots but these."""

    write: int
    start_offset: int
    snapshots: tuple[SnapshotId, ...]


@dataclass(slots=True)
class SendReply:
    """Reply to the request that came with `reply_to`."""

    reply_to: int
    reply: Reply
    after: int

    @property
    def waits_for_records(self) -> bool:
        return False


@dataclass(slots=True)
class AnnounceHighWatermark:
    """Everything below `offset` is committed."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceRole:
    """The role, the epoch or the leader changed, for this reason."""

    role: Role
    epoch: int
    leader_id: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceVoters:
    """The latest voter set of the log, committed or not, is another one now."""

    voters: VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptClusterId:
    """The cluster id that the log carries is committed: keep it in meta.properties."""

    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistRemoval:
    """This replica was removed from the voters: keep that in meta.properties. It never joins by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A message was ignored or refused, or something is wrong, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """This node must stop: going on could harm the quorum."""

    reason: str


Effect = (
    PersistQuorumState
    | AppendControl
    | AppendClient
    | AppendFetched
    | TruncateLog
    | StoreSnapshotChunk
    | DropSnapshot
    | VerifySnapshot
    | ResetLog
    | DeleteLogPrefix
    | SendRequest
    | CancelHeldRequests
    | SendReply
    | AnnounceHighWatermark
    | AnnounceRole
    | AnnounceVoters
    | AdoptClusterId
    | PersistRemoval
    | Report
    | Halt
)
