"""Logs made up batch by batch, and tables of them without Spark: for what needs neither a quorum nor Java."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from uuid import UUID

from quorumd.pipeline.parse import ChunkOrigin, parse
from quorumd.pipeline.tables.commit import TaskOutput, commit_log
from quorumd.pipeline.tables.output import Output
from quorumd.pipeline.tables.sink import write_log
from quorumd.wire.compression import CompressionType
from quorumd.wire.control_records import (
    ControlRecord,
    KRaftVersionFeature,
    KRaftVoter,
    KRaftVoterEndpoint,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    encode_control_batch,
)
from quorumd.wire.records import Record, build_batch
from tests.pipeline.parsed import patched

START_MS = 1_790_000_000_000


class Log:
    """Bytes of a log that grows; `now_ms` is what the next batch carries."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.end = 0
        self.epoch = 0
        self.now_ms = START_MS

    def elect(self, leader: int, voters: Sequence[int], *, epoch: int | None = None) -> None:
        self.epoch = self.epoch + 1 if epoch is None else epoch
        keys = tuple(LeaderChangeVoter(voter_id=each) for each in voters)
        self.control(
            LeaderChange(version=0, leader_id=leader, voters=keys, granting_voters=keys[:2])
        )

    def control(self, *records: ControlRecord) -> None:
        self.data += encode_control_batch(
            records, base_offset=self.end, epoch=self.epoch, timestamp_ms=self.now_ms
        )
        self.end += len(records)

    def append(self, pairs: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        records = [Record(timestamp=self.now_ms, key=key, value=value) for key, value in pairs]
        self.data += build_batch(records, base_offset=self.end, epoch=self.epoch)
        self.end += len(records)

    def append_empty(self, count: int) -> None:
        """A batch that says it is compressed, and does not unpack: it counts as empty."""
        batch = build_batch([Record(timestamp=0)], base_offset=self.end, epoch=self.epoch)
        for at, number in ((23, count - 1), (57, count)):
            batch = patched(batch, at, number.to_bytes(4, "big"))
        self.data += patched(batch, 22, bytes([CompressionType.GZIP]))
        self.end += count

    def written(self, folder: Path, start: int, end: int) -> TaskOutput:
        """What a task writes of this range."""
        return write_log(folder, parse("log_records", bytes(self.data), start, end, ChunkOrigin()))

    def take(self, output: Output, end: int | None = None) -> None:
        """The tables get what they lack, up to `end` (exclusive)."""
        stop = self.end if end is None else end
        commit_log(
            output.folder, output.token, [self.written(output.folder, output.end_offset, stop)]
        )


def voter_set(*voters: tuple[int, int], port: int = 9093) -> KRaftVoters:
    """Of (id, number of the storage id)."""
    return KRaftVoters(
        version=0,
        voters=tuple(
            KRaftVoter(
                voter_id=voter,
                voter_directory_id=UUID(int=number),
                endpoints=(KRaftVoterEndpoint(name="CONTROLLER", host=f"host{voter}", port=port),),
                kraft_version_feature=KRaftVersionFeature(
                    min_supported_version=0, max_supported_version=1
                ),
            )
            for voter, number in voters
        ),
    )
