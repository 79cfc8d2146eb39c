"""Former quorums, their backups, and new quorums from them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quorumd import EARLIEST, KeyValueView, QuorumClient
from quorumd import Record as NewRecord
from quorumd.cli.main import run
from quorumd.storage.backup_manifest import load_manifest
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.meta_properties import load_meta_properties
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.produce import ProduceResponsePartition
from quorumd.wire.records import Record, build_batch
from tests.support.commands import Done, quorumd
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.load import Load, produce, produce_of
from tests.support.raw_client import Hungup, RawClient

FORGETFUL = {
    "log.segment.bytes": 16_384,
    "log.max.batch.bytes": 4096,
    "snapshot.max.new.record.bytes": 60_000,
    "retention.bytes": 0,
}
BATCH = build_batch(
    [Record(key=b"once", value=b"only")], producer_id=77, producer_epoch=0, base_sequence=0
)
PASSING = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}
NEXT_BATCH = build_batch(
    [Record(key=b"once", value=b"again")], producer_id=77, producer_epoch=0, base_sequence=1
)


def send(cluster: Cluster, batch: bytes) -> int:
    """The offset at which a batch is in the log, sent again as any producer does."""

    def sent() -> ProduceResponsePartition | None:
        try:
            with RawClient(cluster.port(cluster.wait_leader())) as client:
                answer = produce(client, produce_of(batch))
        except Hungup:
            return None
        return None if answer.error_code in PASSING else answer

    answer = cluster.wait_for(sent, "an answer to a batch")
    assert not answer.error_code, answer.error_message
    return answer.base_offset


def put(cluster: Cluster, count: int = 300) -> None:
    """Records with keys and without."""

    async def run_it() -> None:
        async with QuorumClient(cluster.bootstrap) as client:
            producer = client.producer(batch_bytes=2000)
            for i in range(count):
                key = b"key%d" % (i % 20) if i % 3 else None
                await producer.append(NewRecord(key=key, value=b"%d " % i + b"x" * 80))
            await producer.flush()

    asyncio.run(run_it())


def everything(cluster: Cluster, end_offset: int) -> tuple[list[Record], dict[bytes, bytes]]:
    """All records in the log below an offset, and the keys' values at its end."""

    async def run_it() -> tuple[list[Record], dict[bytes, bytes]]:
        async with QuorumClient(cluster.bootstrap) as client:
            start = (await client.list_offsets(EARLIEST)).offset
            records = [
                record
                async for fetched in client.read(start, end_offset)
                for record in fetched.records
                if record.offset < end_offset
            ]
            async with KeyValueView(client) as view:
                found = {key: entry.value for key, entry in view.items(b"key")}
        return records, found

    return asyncio.run(run_it())


@dataclass(frozen=True, slots=True)
class Former:
    """What is left of the former quorum: its backup, and its nodes, which do not run."""

    cluster: Cluster
    backup: Path
    end_offset: int
    records: list[Record]
    contents: dict[bytes, bytes]
    once_offset: int


@contextmanager
def former_quorum(folder: Path, settings: dict[str, object]) -> Iterator[Former]:
    with running_cluster(folder / "former", settings=settings) as cluster:
        once_offset = send(cluster, BATCH)
        put(cluster)
        if settings:
            with Load(cluster, value_bytes=1000) as load:
                load.wait_progress(100)
                cluster.wait_for(
                    lambda: (
                        min(cluster.status(n)["log_start_offset"] for n in cluster.ids)
                        > once_offset
                    ),
                    "logs that start above 0",
                    60,
                )
        # Another epoch; and from here on nothing is deleted, so that the backup can be held to the log.
        cluster.kill_all()
        for node in cluster.ids:
            cluster.write_config(node, {"retention.bytes": -1})
        cluster.start()
        cluster.wait_ready()
        backup = folder / "backup"
        assert run(["backup", "-b", cluster.bootstrap, str(backup)]) == 0
        manifest = load_manifest(RealFileSystem(), backup)
        records, contents = everything(cluster, manifest.end_offset)
        cluster.stop_all()
        records = [record for record in records if record.offset >= manifest.start_offset]
        yield Former(cluster, backup, manifest.end_offset, records, contents, once_offset)


def restore(cluster: Cluster, node: int, backup: Path, *options: str) -> Done:
    return quorumd("restore", backup, "--config", cluster.config_path(node), *options)


def restored(cluster: Cluster, backup: Path, *options: str, nodes: tuple[int, ...] = ()) -> None:
    for node in nodes or cluster.voters:
        done = restore(cluster, node, backup, *options)
        assert done.code == 0, done.text


def cluster_id(cluster: Cluster, node: int) -> str | None:
    return load_meta_properties(RealFileSystem(), cluster.storage_dir(node)).cluster_id
