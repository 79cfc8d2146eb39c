"""Random logs, and what their snapshots have to be: said once more, in the plainest way there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from uuid import UUID

from crc32c import crc32c
from hypothesis import strategies as st

from quorumd.raft.types import SnapshotId
from quorumd.server.model.producer_state import ProducerState
from quorumd.server.snapshots.snapshot_builder import BuiltSnapshot, SnapshotBuilder
from quorumd.storage.filesystem import FileSystem
from quorumd.storage.layout import part_path
from quorumd.storage.snapshot_store import SnapshotStore
from quorumd.wire import snapshot_records
from quorumd.wire.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVoter,
    KRaftVoters,
    LeaderChange,
    ProducerStates,
    SnapshotFooter,
    SnapshotHeader,
    UnknownControl,
    encode_control_batch,
    encode_control_record,
    raw_control_records,
)
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import Record, build_batch, iter_records, read_header
from tests.storage.helpers import DIRECTORY, START_MS, append, open_log

KEYS = (None, b"", b"a", b"aa", b"b", b"\0", b"\xff\xff", b"k" * 70, b"z" * 20_000)
VALUES = (None, None, b"", b"v", b"w" * 63, b"x" * 64, b"y" * 9_000)
HEADERS = ((), (), (("h", b"1"),), ((b"\xff", None), ("quorumd.offset", b"7")), (("m", b""),) * 64)


@dataclass
class Batches:
    """A log in the making: whole batches one behind the other."""

    random: Random
    data: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0])
    epoch: int = 1

    def add(self, batch: bytes, count: int) -> None:
        self.data.append(batch)
        self.ends.append(self.ends[-1] + count)

    def add_records(self, count: int) -> None:
        draw = self.random
        start = START_MS + draw.randrange(-(10**6), 10**6)
        records = [
            Record(
                timestamp=start + draw.choice((0, 0, 1, -1, 5_000, 10**9, -(10**12))),
                key=draw.choice(KEYS),
                value=draw.choice(VALUES),
                headers=draw.choice(HEADERS),
            )
            for _ in range(count)
        ]
        has_producer = draw.random() < 0.5
        batch = build_batch(
            records,
            base_offset=self.ends[-1],
            epoch=self.epoch,
            codec=draw.choice((0, 0, 1, 2, 3, 4)),
            producer_id=draw.randrange(5) if has_producer else -1,
            producer_epoch=draw.randrange(2) if has_producer else -1,
            base_sequence=draw.randrange(2**31) if has_producer else -1,
        )
        if draw.random() < 0.1:
            batch = with_attributes(batch, read_header(batch).attributes | 8)
        self.add(batch, count)

    def add_garbage(self) -> None:
        """Its CRC is right, and it has a producer: only its contents are no records."""
        batch = build_batch(
            [Record(timestamp=START_MS + 10**7, key=b"a", value=b"lost")] * 2,
            base_offset=self.ends[-1],
            epoch=self.epoch,
            producer_id=9,
            producer_epoch=0,
            base_sequence=3,
        )
        if self.random.random() < 0.5:
            self.add(with_attributes(batch, self.random.randrange(1, 8)), 2)
        else:
            self.add(with_crc(batch[:-1] + b"\7"), 2)

    def add_control(self, *records: ControlRecord) -> None:
        now = START_MS + self.random.randrange(-(10**6), 10**6)
        self.add(
            encode_control_batch(
                records, base_offset=self.ends[-1], epoch=self.epoch, timestamp_ms=now
            ),
            len(records),
        )

    def add_any(self) -> None:
        draw = self.random
        kind = draw.random()
        if kind < 0.1:
            self.epoch += draw.randrange(1, 3)
            self.add_control(LeaderChange(leader_id=1), *self._state())
        elif kind < 0.2:
            self.add_control(*(self._state() or [UnknownControl(7, b"?")]))
        elif kind < 0.25:
            self.add_garbage()
        else:
            self.add_records(draw.choice((1, 1, 2, 5, 30)))

    def _state(self) -> list[ControlRecord]:
        draw = self.random
        voters = KRaftVoters(
            voters=tuple(
                KRaftVoter(voter_id=id_, voter_directory_id=UUID(int=id_ + 1))
                for id_ in range(draw.randrange(4))
            ),
            cluster_id=draw.choice((None, "cluster")),
        )
        # A tag that is not known here, at the end of the value, has to be copied too.
        kind, value = encode_control_record(voters)
        assert value is not None
        if voters.cluster_id is None and draw.random() < 0.5:
            assert value.endswith(b"\0")
            voters_record: ControlRecord = UnknownControl(6, value[:-1] + b"\x01\xb0\x4e\x01?")
        else:
            voters_record = UnknownControl(int.from_bytes(kind[2:], "big"), value)
        return [
            record
            for record in (KRaftVersion(kraft_version=draw.randrange(2)), voters_record)
            if draw.random() < 0.5
        ]


def random_batches(seed: int, count: int) -> Batches:
    batches = Batches(Random(seed))
    batches.add_control(LeaderChange(leader_id=1))
    for _ in range(count):
        batches.add_any()
    return batches


LOGS = st.builds(random_batches, st.integers(0, 2**64), st.integers(0, 25))


def with_crc(batch: bytes) -> bytes:
    return batch[:17] + crc32c(batch[21:]).to_bytes(4, "big") + batch[21:]


def with_attributes(batch: bytes, attributes: int) -> bytes:
    return with_crc(batch[:21] + attributes.to_bytes(2, "big") + batch[23:])


def write_log(
    fs: FileSystem, batches: Batches, directory: Path = DIRECTORY, *, segment_bytes: int = 1 << 20
) -> None:
    """Through the log itself, as a node does; it is not stopped cleanly."""
    log = open_log(fs, directory, segment_bytes=segment_bytes, index_interval_bytes=64)
    for data, base_offset, end_offset in zip(
        batches.data, batches.ends, batches.ends[1:], strict=False
    ):
        append(log, data, base_offset, end_offset)
    log.close()


def build(
    fs: FileSystem,
    end_offset: int,
    *,
    directory: Path = DIRECTORY,
    memory_bytes: int = 64 << 20,
    complete: bool = False,
) -> tuple[BuiltSnapshot, bytes]:
    """Builds a snapshot; the bytes of its file, which is deleted unless it is to be complete."""
    steps = SnapshotBuilder(fs, directory, end_offset, memory_bytes=memory_bytes).run()
    last = (0, 1)
    while True:
        try:
            progress = next(steps)
            assert 0 <= progress.done_bytes <= progress.total_bytes
            assert progress >= last or progress.done_bytes >= last[0]
            last = progress
        except StopIteration as done:
            built: BuiltSnapshot = done.value
            break
    store = SnapshotStore(fs, directory)
    path = part_path(directory, built.id)
    handle = fs.open(path)
    data = fs.pread(handle, fs.size(handle), 0)
    fs.close(handle)
    assert [name for name in fs.listdir(directory) if name.endswith(".part")] == [path.name]
    assert built.size_bytes == len(data)
    if complete:
        store.complete_part(built.id)
    else:
        store.drop_part(built.id)
    return built, data


def expected_snapshot(batches: Batches, end_offset: int) -> tuple[SnapshotId, bytes]:
    """The snapshot of the log up to an offset where a batch ends, byte by byte."""
    below = [
        batch
        for batch, end in zip(batches.data, batches.ends[1:], strict=True)
        if end <= end_offset
    ]
    headers = [read_header(batch) for batch in below]
    newest: dict[bytes, Record] = {}
    state: dict[int, UnknownControl] = {}
    producers = ProducerState()
    for header, batch in zip(headers, below, strict=True):
        producers.note(header)
        if header.is_control:
            state |= {raw.type: raw for raw, _ in raw_control_records(batch)}
            continue
        try:
            records = list(iter_records(batch))
        except CorruptBatch:
            continue
        newest |= {record.key: record for record in records if record.key is not None}
    epoch = headers[-1].epoch
    time = max(header.max_timestamp for header in headers)
    data = bytearray()
    next_offset = 0

    def add(batch: bytes, count: int) -> None:
        nonlocal next_offset
        data.extend(batch)
        next_offset += count

    def add_control(records: Sequence[ControlRecord]) -> None:
        batch = encode_control_batch(
            records, base_offset=next_offset, epoch=epoch, timestamp_ms=time
        )
        add(batch, len(records))

    copied = [state[kind] for kind in (5, 6) if kind in state]
    header = SnapshotHeader(last_contained_log_timestamp=time, end_offset=end_offset)
    add_control([header, *copied])
    if len(producers):
        add_control([ProducerStates(producers=producers.to_snapshot())])

    def data_batch(records: Sequence[Record]) -> bytes:
        batch = build_batch(records, base_offset=next_offset, epoch=epoch, base_timestamp=time)
        greatest = time.to_bytes(8, "big", signed=True)
        return with_crc(batch[:35] + greatest + batch[43:])

    waiting: list[Record] = []
    for _, record in sorted(newest.items()):
        if record.value is None:
            continue
        marked = (*record.headers, ("quorumd.offset", b"%d" % record.offset))
        record = record._replace(headers=marked)
        size = len(data_batch([*waiting, record]))
        if waiting and size > snapshot_records.SNAPSHOT_BATCH_BYTES:
            add(data_batch(waiting), len(waiting))
            waiting = []
        waiting.append(record)
    if waiting:
        add(data_batch(waiting), len(waiting))
    add_control([SnapshotFooter()])
    return SnapshotId(end_offset, epoch), bytes(data)
