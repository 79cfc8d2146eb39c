"""The client of a quorum: append, read and describe its log over the network.

Knows the wire protocol and the leader; knows no disk, no configuration file and no daemon. What is listed
here is the public library: `quorumd` has the same names.
"""

from quorumd.client.admin import (
    AddedVoter,
    LeaderTransfer,
    QuorumAdmin,
    RemovedVoter,
    ReplacedVoter,
)
from quorumd.client.client import EARLIEST, LATEST, OffsetAndTimestamp, QuorumClient
from quorumd.client.description import PendingQuorumChange, QuorumDescription, ReplicaState
from quorumd.client.errors import (
    AppendFailed,
    ChangeRefused,
    ChangeTimedOut,
    LogReplaced,
    NotSupported,
    OffsetNotReached,
    OffsetOutOfRange,
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
from quorumd.client.view import KeyChange, KeyValueEntry, KeyValueMap, KeyValueView
from quorumd.client.voter_changes import ChangeProgress
from quorumd.raft.types import Endpoint, ReplicaKey, SnapshotId
from quorumd.wire.records import Record

__all__ = [
    "EARLIEST",
    "LATEST",
    "AddedVoter",
    "AppendFailed",
    "BatchCommitted",
    "ChangeProgress",
    "ChangeRefused",
    "ChangeTimedOut",
    "Endpoint",
    "Fetched",
    "FetchedBatch",
    "KeyChange",
    "KeyValueEntry",
    "KeyValueMap",
    "KeyValueView",
    "LeaderChanged",
    "LeaderTransfer",
    "LogEvent",
    "LogReplaced",
    "NotSupported",
    "OffsetAndTimestamp",
    "OffsetNotReached",
    "OffsetOutOfRange",
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
    "RemovedVoter",
    "ReplacedVoter",
    "ReplicaKey",
    "ReplicaNotFound",
    "ReplicaState",
    "RequestRefused",
    "SnapshotId",
    "SnapshotLoaded",
]
