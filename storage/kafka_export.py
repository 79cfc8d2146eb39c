"""The directory of a real Kafka controller, made from that of a node that observed its quorum.

For a quorum whose controllers have lost their disks: the copy is cut at the high watermark, and as many
controllers as make a majority start from it, each under its id and its former directory id. What is written
and what follows from it: docs/kafka.md. Source of the layout: Apache Kafka 4.3, and docs/storage-format.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from quorumd.config import java_properties
from quorumd.raft.types import Address, SnapshotId, uuid_to_text
from quorumd.storage import layout
from quorumd.storage.epoch_checkpoint import EpochStart, render_epochs
from quorumd.storage.errors import DamagedLog, NotFormatted, StorageError, from_os_error
from quorumd.storage.filesystem import FileSystem, RealFileSystem, replace_file, write_all
from quorumd.storage.meta_properties import LogOwner, random_storage_id, read_meta_properties
from quorumd.storage.quorum_state import QuorumState, load_quorum_state
from quorumd.storage.reader import FoundBatch, LogFile, TailKind, find_files
from quorumd.storage.snapshot_file import SnapshotReader, verify_snapshot
from quorumd.wire.control_records import KRaftVoters, decode_control_batch
from quorumd.wire.metadata_records import NotMetadata, decode_metadata
from quorumd.wire.records import Record, iter_records
from quorumd.wire.schema import ZERO_UUID
from quorumd.wire.sequence_check import sequence_problem

EPOCH_GAP: Final = 1000
"""The restored quorum's epochs begin so far above the copy's: what the lost one wrote afterwards has no epoch
in common with what the restored one writes, so that every broker notices where they part."""
_OF_BROKERS: Final = (b"\x01\x00", b"\x01\x01")
"""First bytes of a RegisterBrokerRecord and an UnregisterBrokerRecord: frame version and type."""
_STEP_BYTES: Final = 4 << 20
_TOPIC_ID: Final = uuid_to_text(UUID(int=1))
_STATE_0: Final = {"clusterId": "", "appliedOffset": 0, "currentVoters": []}
_STATE_1: Final = {"votedDirectoryId": uuid_to_text(ZERO_UUID)}


class KafkaBroker(NamedTuple):
    """A broker that the copy names, and where it is reached."""

    id: int
    endpoints: tuple[tuple[Address, int], ...]
    """Each with Kafka's number of its security protocol: 0 is PLAINTEXT, 1 SSL."""


class ExportRefused(StorageError):
    """This directory, or this node id, makes no controller; nothing was written."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaExport:
    """The content of the directory for a controller. Offsets are exclusive ends, but for the start.

    `known_end` is what the observer knew to be committed, `log_end` what it had. `newest_ms` is the time
    of the last batch that is taken, -1 if there is none behind the snapshot.
    """

    source: Path
    cluster_id: str
    node_id: int
    directory_id: UUID
    voters: tuple[int, ...]
    start_offset: int
    end_offset: int
    known_end: int
    log_end: int
    newest_ms: int
    epochs: tuple[EpochStart, ...]
    leader_epoch: int
    snapshots: tuple[SnapshotId, ...]
    brokers: tuple[KafkaBroker, ...]
    """Brokers that are registered, by id."""
    is_of_voter: bool
    """The copy is that of a witness: what is above the high watermark may have been acknowledged."""
    has_voters: bool
    """The log names the voters (kraft.version 1); else the controllers' configuration does."""

    @property
    def left_out(self) -> int:
        """Offsets that the observer had and that are not taken."""
        return self.log_end - self.end_offset


def plan_export(
    storage_dir: Path,
    node_id: int,
    *,
    keep_tail: bool | None = None,
    fs: FileSystem | None = None,
) -> KafkaExport:
    """The export that a controller under `node_id` would get. Reads and checks all of the directory.

    With `keep_tail` the records are taken, too, that are not known to be committed; None: if the copy is
    that of a voter, whose acknowledgement may have committed them at the leader. Raises ExportRefused,
    DamagedLog or another StorageError.
    """
    fs = fs or RealFileSystem()
    try:
        meta = read_meta_properties(fs, storage_dir)
    except NotFormatted as error:
        raise ExportRefused(
            "there is no meta.properties",
            path=storage_dir,
            remedy="Name the storage.dir of an observer or witness, or of a copy of it",
        ) from error
    if meta.log_owner is not LogOwner.KAFKA or meta.cluster_id is None:
        raise ExportRefused(
            "this directory does not hold the log of a Kafka quorum",
            path=storage_dir,
            remedy="Name the storage.dir of a node that was formatted with --kafka-log",
        )
    state = load_quorum_state(fs, layout.partition_directory(storage_dir)) or QuorumState()
    walk = _Walk(fs, storage_dir, state.applied_offset)
    is_of_voter = walk.below_bound.names(meta.node_id)
    takes_tail = is_of_voter if keep_tail is None else keep_tail
    taken = walk.all if takes_tail else walk.below_bound
    if taken.end_offset <= walk.start_offset and not walk.snapshots:
        raise ExportRefused(
            "nothing in this directory is known to be committed",
            path=storage_dir,
            remedy="--keep-tail takes what is there nevertheless",
        )
    return KafkaExport(
        source=storage_dir,
        cluster_id=meta.cluster_id,
        node_id=node_id,
        directory_id=_directory_id(taken.voters, node_id, storage_dir),
        voters=() if taken.voters is None else tuple(each.voter_id for each in taken.voters.voters),
        start_offset=walk.start_offset,
        end_offset=taken.end_offset,
        known_end=state.applied_offset,
        log_end=walk.log_end,
        newest_ms=taken.newest_ms,
        epochs=tuple(taken.epochs),
        leader_epoch=max(state.leader_epoch, taken.last_epoch) + EPOCH_GAP,
        snapshots=tuple(walk.snapshots),
        brokers=tuple(taken.brokers[broker_id] for broker_id in sorted(taken.brokers)),
        is_of_voter=is_of_voter,
        has_voters=taken.voters is not None,
    )


def _directory_id(voters: KRaftVoters | None, node_id: int, storage_dir: Path) -> UUID:
    if voters is None:
        return random_storage_id()
    for voter in voters.voters:
        if voter.voter_id == node_id and voter.voter_directory_id != ZERO_UUID:
            return voter.voter_directory_id
    known = ", ".join(str(each.voter_id) for each in voters.voters)
    raise ExportRefused(
        f"node {node_id} is no voter of this quorum, the voters are {known}",
        path=storage_dir,
        remedy="Export as many of these as make a majority",
    )


@dataclass(slots=True)
class _Found:
    """Contents of a log, up to a batch."""

    end_offset: int = 0
    newest_ms: int = -1
    last_epoch: int = -1
    epochs: list[EpochStart] = field(default_factory=list)
    voters: KRaftVoters | None = None
    brokers: dict[int, KafkaBroker] = field(default_factory=dict)

    def copy(self) -> _Found:
        """As it is now."""
        return replace(self, epochs=[*self.epochs], brokers={**self.brokers})

    def names(self, node_id: int | None) -> bool:
        """True if that node is a voter."""
        return self.voters is not None and node_id in {each.voter_id for each in self.voters.voters}

    def take(self, batch: FoundBatch) -> None:
        header = batch.header
        self.end_offset, self.newest_ms = header.next_offset, header.max_timestamp
        if header.epoch > self.last_epoch or not self.epochs:
            self.epochs.append(EpochStart(header.epoch, header.base_offset))
            self.last_epoch = header.epoch
        if header.is_control:
            for _, record in decode_control_batch(batch.data):
                self.voters = record if isinstance(record, KRaftVoters) else self.voters
        else:
            self.take_brokers(iter_records(batch.data))

    def take_brokers(self, records: Iterable[Record]) -> None:
        """Notes the brokers that are registered once these records are applied."""
        for record in records:
            value = bytes(record.value or b"")
            if not value.startswith(_OF_BROKERS):
                continue
            with suppress(NotMetadata):
                found = decode_metadata(value)
                if found.fields is None:
                    continue
                broker_id = found.fields["brokerId"]
                self.brokers.pop(broker_id, None)
                if found.name == "RegisterBrokerRecord":
                    endpoints = tuple(
                        (Address(at["host"], at["port"]), at["securityProtocol"])
                        for at in found.fields["endPoints"]
                    )
                    self.brokers[broker_id] = KafkaBroker(broker_id, endpoints)


class _Walk:
    """Reads a directory once: `all` that is in it, and what of that is `below_bound`."""

    def __init__(self, fs: FileSystem, storage_dir: Path, bound: int) -> None:
        self.start_offset = self.log_end = 0
        self.snapshots: list[SnapshotId] = []
        self.all = _Found()
        self.below_bound = self.all
        self._bound = bound
        self._log_epoch: int | None = None
        files = find_files(storage_dir, fs)
        for file in files:
            if file.snapshot_id is not None:
                self._take_snapshot(fs, file.path, file.snapshot_id)
        segments = [file for file in files if file.snapshot_id is None]
        if segments and segments[0].base_offset is not None:
            self.start_offset = self.log_end = self.all.end_offset = segments[0].base_offset
        for file in segments:
            self._take_segment(file, is_last=file is segments[-1])
        if self.start_offset > 0 and not any(
            each.end_offset >= self.start_offset for each in self.snapshots
        ):
            raise DamagedLog(
                f"the log begins at offset {self.start_offset}, and no snapshot stands for what was before",
                path=storage_dir,
                remedy="Use another copy",
            )

    def _take_snapshot(self, fs: FileSystem, path: Path, snapshot: SnapshotId) -> None:
        facts = verify_snapshot(fs, path, snapshot)
        self.all.brokers = {}
        reader = SnapshotReader(fs, path, snapshot)
        try:
            for records in reader.kafka_records() if reader.is_kafkas else ():
                self.all.take_brokers(records)
        finally:
            reader.close()
        self.snapshots.append(snapshot)
        self.all.voters = facts.voters
        self.all.last_epoch = max(self.all.last_epoch, snapshot.epoch)

    def _take_segment(self, file: LogFile, *, is_last: bool) -> None:
        for batch in file.batches():
            header = batch.header
            problem = sequence_problem(header, self.log_end, self._log_epoch)
            if problem or not batch.crc_is_valid:
                raise DamagedLog(
                    problem or "the CRC does not match the contents",
                    path=file.path,
                    position=batch.position,
                    offset=header.base_offset,
                    remedy="Nothing was written. Use another copy",
                )
            self.log_end, self._log_epoch = header.next_offset, header.epoch
            if header.next_offset > self._bound and self.below_bound is self.all:
                self.below_bound = self.all.copy()
            self.all.take(batch)
        tail = file.tail
        assert tail is not None, "the walk is over"
        if tail.kind is TailKind.DAMAGE or (tail.kind is TailKind.TORN and not is_last):
            raise DamagedLog(
                tail.reason,
                path=file.path,
                position=tail.position,
                remedy="Nothing was written. Use another copy",
            )


def write_export(export: KafkaExport, target: Path, *, fs: FileSystem | None = None) -> None:
    """Makes the directory, durably; meta.properties last, without which no controller starts.

    Raises ExportRefused if something is there already or the folder above is not there, DiskFull or another
    StorageError.
    """
    fs = fs or RealFileSystem()
    log_directory = layout.partition_directory(target)
    try:
        if fs.exists(target) and fs.listdir(target):
            raise ExportRefused(
                "the directory is not empty", path=target, remedy="Name a new one, or empty it"
            )
        if not fs.exists(target.parent):
            raise ExportRefused(
                "there is no such directory", path=target.parent, remedy="Make it first"
            )
        for directory in (target, log_directory):
            if not fs.exists(directory):
                fs.mkdir(directory)
                fs.fsync_directory(directory.parent)
    except OSError as error:
        raise from_os_error(error, target, "making the directory") from error
    for file in find_files(export.source, fs):
        if file.snapshot_id is None:
            _copy(fs, file, log_directory / file.path.name, export.end_offset)
        elif file.snapshot_id in export.snapshots:
            _copy(fs, file, log_directory / file.path.name, None)
    state = {
        "leaderId": -1,
        "leaderEpoch": export.leader_epoch,
        "votedId": -1,
        **(_STATE_1 if export.has_voters else _STATE_0),
        "data_version": int(export.has_voters),
    }
    topic = f"version: 0\ntopic_id: {_TOPIC_ID}"
    meta = {
        "version": "1",
        "cluster.id": export.cluster_id,
        "node.id": str(export.node_id),
        "directory.id": uuid_to_text(export.directory_id),
    }
    # The last one is what makes it a controller's directory.
    for path, data in (
        (log_directory / layout.EPOCH_CHECKPOINT, render_epochs(export.epochs)),
        (log_directory / layout.KAFKA_PARTITION, topic.encode()),
        (log_directory / layout.KAFKA_QUORUM_STATE, json.dumps(state).encode()),
        (target / layout.META_PROPERTIES, java_properties.render(meta).encode("ascii")),
    ):
        replace_file(fs, path, data)


def _copy(fs: FileSystem, source: LogFile, target: Path, end_offset: int | None) -> None:
    """Batch by batch, up to an offset if there is one; a file that would hold none is left out."""
    held: list[bytes] = []
    held_bytes = written = 0
    handle = -1
    try:
        for batch in source.batches():
            if end_offset is not None and batch.header.next_offset > end_offset:
                break
            held.append(batch.data)
            held_bytes += len(batch.data)
            if held_bytes >= _STEP_BYTES:
                handle = handle if handle >= 0 else fs.open(target, writable=True, create=True)
                write_all(fs, handle, held, written)
                written, held_bytes, held = written + held_bytes, 0, []
        if held:
            handle = handle if handle >= 0 else fs.open(target, writable=True, create=True)
            write_all(fs, handle, held, written)
        if handle >= 0:
            fs.fsync(handle)
    except OSError as error:
        raise from_os_error(error, target, "writing") from error
    finally:
        if handle >= 0:
            fs.close(handle)
