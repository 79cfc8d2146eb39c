"""The public library: `quorumd` has these names, and `quorumd.client`."""

from quorumd.client.admin import (
    AddedVoter,
    LeaderTransfer,
    QuorumAdmin,
    RemovedVoter,
    ReplacedVoter,
)
from quorumd.client.client import EARLIEST, LATEST, OffsetAndTimestamp, QuorumClient
from quorumd.client.coordination.election import Election
from quorumd.client.coordination.errors import LockLost, NotAcquired
from quorumd.client.coordination.keys import ClaimKind
from quorumd.client.coordination.listing import (
    Claimant,
    ClaimedName,
    force_unlock,
    list_claims,
)
from quorumd.client.coordination.lock import Lock
from quorumd.client.coordination.registration import Registration
from quorumd.client.description import PendingQuorumChange, QuorumDescription, ReplicaState
from quorumd.client.errors import (
    AppendFailed,
    ChangeRefused,
    ChangeTimedOut,
    Conflict,
    LogReplaced,
    NotSupported,
    OffsetNotReached,
    OffsetOutOfRange,
    OtherCluster,
    QuorumError,
    QuorumUnavailable,
    ReplicaNotFound,
    RequestRefused,
)
from quorumd.client.events import (
    BatchCommitted,
    LeaderChanged,
    LogEvent,
    QuorumLost,
    QuorumRestored,
    SnapshotLoaded,
)
from quorumd.client.producer import Producer
from quorumd.client.reading import Fetched, FetchedBatch
from quorumd.client.replicas import Reassignment
from quorumd.client.security import Security
from quorumd.client.transaction import Retry, Transaction, Updated
from quorumd.client.view import KeyChange, KeyValueEntry, KeyValueMap, KeyValueView
from quorumd.client.voter_changes import ChangeProgress
from quorumd.config.errors import ConfigError
from quorumd.raft.types import Endpoint, ReplicaKey, SnapshotId
from quorumd.security.errors import CertificateProblem, PeerSpeaksPlaintext
from quorumd.wire.records import Record

__all__ = [
    "EARLIEST",
    "LATEST",
    "AddedVoter",
    "AppendFailed",
    "BatchCommitted",
    "CertificateProblem",
    "ChangeProgress",
    "ChangeRefused",
    "ChangeTimedOut",
    "ClaimKind",
    "Claimant",
    "ClaimedName",
    "ConfigError",
    "Conflict",
    "Election",
    "Endpoint",
    "Fetched",
    "FetchedBatch",
    "KeyChange",
    "KeyValueEntry",
    "KeyValueMap",
    "KeyValueView",
    "LeaderChanged",
    "LeaderTransfer",
    "Lock",
    "LockLost",
    "LogEvent",
    "LogReplaced",
    "NotAcquired",
    "NotSupported",
    "OffsetAndTimestamp",
    "OffsetNotReached",
    "OffsetOutOfRange",
    "OtherCluster",
    "PeerSpeaksPlaintext",
    "PendingQuorumChange",
    "Producer",
    "QuorumAdmin",
    "QuorumClient",
    "QuorumDescription",
    "QuorumError",
    "QuorumLost",
    "QuorumRestored",
    "QuorumUnavailable",
    "Reassignment",
    "Record",
    "Registration",
    "RemovedVoter",
    "ReplacedVoter",
    "ReplicaKey",
    "ReplicaNotFound",
    "ReplicaState",
    "RequestRefused",
    "Retry",
    "Security",
    "SnapshotId",
    "SnapshotLoaded",
    "Transaction",
    "Updated",
    "force_unlock",
    "list_claims",
]
