"""The library for other people's programs: a client of a quorum.

    import asyncio, quorumd

    async def main() -> None:
        async with quorumd.QuorumClient("localhost:9093") as client:
            await client.append([quorumd.Record(key=b"color", value=b"blue")])
            async with quorumd.KeyValueView(client) as view:
                print(view.get(b"color"))

    asyncio.run(main())

Importing it starts nothing and opens nothing.
"""

from quorumd.client.client import EARLIEST, LATEST, OffsetAt, QuorumClient
from quorumd.client.description import QuorumDescription, ReplicaState
from quorumd.client.errors import (
    AppendFailed,
    LogReplaced,
    NotSupported,
    OffsetNotReached,
    OffsetOutOfRange,
    QuorumError,
    QuorumUnavailable,
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
from quorumd.client.producing import Appender
from quorumd.client.reading import Fetched, FetchedBatch
from quorumd.client.spool import SnapshotId
from quorumd.client.view import Change, Entry, KeyValueMap, KeyValueView
from wire.records import Record

__all__ = [
    "EARLIEST",
    "LATEST",
    "AppendFailed",
    "Appender",
    "BatchCommitted",
    "Change",
    "Entry",
    "Event",
    "Fetched",
    "FetchedBatch",
    "KeyValueMap",
    "KeyValueView",
    "LeaderChanged",
    "LogReplaced",
    "NotSupported",
    "OffsetAt",
    "OffsetNotReached",
    "OffsetOutOfRange",
    "QuorumBack",
    "QuorumClient",
    "QuorumDescription",
    "QuorumError",
    "QuorumLost",
    "QuorumUnavailable",
    "Record",
    "ReplicaState",
    "RequestRefused",
    "SnapshotId",
    "SnapshotLoaded",
]
