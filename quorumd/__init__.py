"""The library for other people's programs: a client of a quorum.

    import asyncio, quorumd

    async def main() -> None:
        async with quorumd.QuorumClient("localhost:9093") as client:
            await client.append([quorumd.Record(key=b"color", value=b"blue")])
            async with quorumd.KeyValueView(client) as view:
                print(view.get(b"color"))

    asyncio.run(main())

`QuorumAdmin` changes who votes and who leads. Importing it starts nothing and opens nothing.
"""

from quorumd.client.admin import (
    AddedVoter,
    LeaderTransfer,
    QuorumAdmin,
    RemovedVoter,
    ReplacedVoter,
)
from quorumd.client.client import EARLIEST, LATEST, OffsetAt, QuorumClient
from quorumd.client.description import PendingChange, QuorumDescription, ReplicaState
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
    Event,
    LeaderChanged,
    QuorumBack,
    QuorumLost,
    SnapshotLoaded,
)
from quorumd.client.producer import Appender
from quorumd.client.reading import Fetched, FetchedBatch
from quorumd.client.replicas import Reassignment
from quorumd.client.spool import SnapshotId
from quorumd.client.view import Change, Entry, KeyValueMap, KeyValueView
from quorumd.client.voter_changes import ChangeProgress
from quorumd.raft.types import Endpoint, ReplicaKey
from quorumd.wire.records import Record

__all__ = [
    "EARLIEST",
    "LATEST",
    "AddedVoter",
    "AppendFailed",
    "Appender",
    "BatchCommitted",
    "Change",
    "ChangeProgress",
    "ChangeRefused",
    "ChangeTimedOut",
    "Endpoint",
    "Entry",
    "Event",
    "Fetched",
    "FetchedBatch",
    "KeyValueMap",
    "KeyValueView",
    "LeaderChanged",
    "LeaderTransfer",
    "LogReplaced",
    "NotSupported",
    "OffsetAt",
    "OffsetNotReached",
    "OffsetOutOfRange",
    "PendingChange",
    "QuorumAdmin",
    "QuorumBack",
    "QuorumClient",
    "QuorumDescription",
    "QuorumError",
    "QuorumLost",
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
