"""The library for other people's programs: a client of a quorum.

    import asyncio, quorumd

    async def main() -> None:
        async with quorumd.QuorumClient("localhost:9093") as client:
            await client.append([quorumd.Record(value=b"hello")])

    asyncio.run(main())

Importing it starts nothing and opens nothing.
"""

from quorumd.client.client import EARLIEST, LATEST, OffsetAt, QuorumClient
from quorumd.client.description import QuorumDescription, ReplicaState
from quorumd.client.errors import (
    AppendFailed,
    NotSupported,
    OffsetOutOfRange,
    QuorumError,
    QuorumUnavailable,
    RequestRefused,
)
from quorumd.client.producing import Appender
from quorumd.client.reading import Fetched, FetchedBatch
from wire.records import Record

__all__ = [
    "EARLIEST",
    "LATEST",
    "AppendFailed",
    "Appender",
    "Fetched",
    "FetchedBatch",
    "NotSupported",
    "OffsetAt",
    "OffsetOutOfRange",
    "QuorumClient",
    "QuorumDescription",
    "QuorumError",
    "QuorumUnavailable",
    "Record",
    "ReplicaState",
    "RequestRefused",
]
