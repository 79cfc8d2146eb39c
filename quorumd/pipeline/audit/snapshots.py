"""Snapshots: each scrubbed, all of one end offset compared, and compared with the state of the log.

What is compared is the decoded state, by key: value, headers, time and offset of the record. The bytes may
differ where other programs have built them. The state at a snapshot's end is built anew from the snapshot
before it, or from an empty state if the log begins at offset 0, and the log in between. Kafka's own
snapshots have no keys, so they are only compared with each other; and without their times, which are those
of the moment when each controller wrote its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from quorumd.cli.text import printable
from quorumd.pipeline.audit.findings import AuditFinding, FindingKind
from quorumd.pipeline.audit.scan import ReplicaRange, ScannedReplica
from quorumd.pipeline.audit.verdict import UncommittedTail
from quorumd.pipeline.files import FileRange, Snapshot, plan_snapshot, read_bytes
from quorumd.pipeline.parse import DamagedBatch, parse
from quorumd.pipeline.parse.headers import walk_headers
from quorumd.storage.errors import StorageError
from quorumd.wire.control_records import ControlType

_KEY_SHOWN = 60
_END = (1 << 63) - 1

KeyDigests = dict[bytes, bytes]
"""For each key a digest of its record."""


class SnapshotTask(NamedTuple):
    """All replicas' snapshots with one end offset and epoch, and the log to build that state from.

    Without `base` the log begins with nothing; without `ranges` there is no log to build it from. A log
    with another epoch at the snapshot's end counts only if it `is_committed` up to there.
    """

    end_offset: int
    epoch: int
    snapshots: tuple[tuple[str, Snapshot], ...]
    base: Snapshot | None
    ranges: tuple[ReplicaRange, ...]
    is_committed: bool

    @property
    def size_bytes(self) -> int:
        sizes = [part.range.size_bytes for part in self.ranges]
        files = [snapshot for _, snapshot in self.snapshots]
        return sum(sizes) + sum(_size_of(each) for each in files)


def _size_of(snapshot: Snapshot) -> int:
    try:
        return snapshot.path.stat().st_size
    except OSError:
        return 0


@dataclass(slots=True)
class SnapshotResult:
    """The findings about the snapshots of one end offset."""

    findings: list[AuditFinding] = field(default_factory=list)
    bytes_read: int = 0


@dataclass(slots=True)
class _Decoded:
    """A sound snapshot; the state of one with the same bytes is shared."""

    label: str
    snapshot: Snapshot
    bytes_digest: bytes
    state: KeyDigests
    has_keys: bool


def snapshot_tasks(
    replicas: Sequence[ScannedReplica], doubted: set[str], tails: Sequence[UncommittedTail]
) -> list[SnapshotTask]:
    """One for each end offset and epoch. Logs and snapshots of `doubted` replicas prove nothing, nor do
    `tails` of logs."""
    by_id: dict[tuple[int, int], list[tuple[str, Snapshot]]] = {}
    for found in replicas:
        for each in found.replica.snapshots:
            by_id.setdefault((each.end_offset, each.epoch), []).append((found.label, each))
    ends = {number: found.end_offset for number, found in enumerate(replicas)}
    ends |= {tail.replica: tail.start for tail in tails}
    sound = [
        (found, ends[number]) for number, found in enumerate(replicas) if found.label not in doubted
    ]
    return [
        SnapshotTask(end_offset, epoch, tuple(snapshots), *_grounds(sound, end_offset))
        for (end_offset, epoch), snapshots in sorted(by_id.items())
    ]


def _grounds(
    sound: Sequence[tuple[ScannedReplica, int]], end_offset: int
) -> tuple[Snapshot | None, tuple[ReplicaRange, ...], bool]:
    """The newest snapshot before this one, and a log that goes on from there; or a log from 0 on.

    `sound` are replicas with the end (exclusive) of what counts of their logs.
    """
    older = [
        snapshot
        for found, _ in sound
        for snapshot in found.replica.snapshots
        if snapshot.end_offset < end_offset
    ]
    # A replica that knows it to be committed is the better witness.
    witnesses = sorted(sound, key=lambda each: each[0].applied_offset < end_offset)
    for base in [*sorted(older, key=lambda each: -each.end_offset), None]:
        begin = 0 if base is None else base.end_offset
        for found, usable_end in witnesses:
            if found.start_offset <= begin and usable_end >= end_offset:
                ranges = tuple(
                    part
                    for part in found.ranges
                    if part.range.end_offset > begin and part.range.start_offset < end_offset
                )
                return base, ranges, found.applied_offset >= end_offset
    return None, (), False


def examine_snapshots(task: SnapshotTask) -> SnapshotResult:
    """Raises nothing: an unreadable file is a finding."""
    seen = SnapshotResult()
    decoded: list[_Decoded] = []
    for label, snapshot in task.snapshots:
        try:
            found = _decode(label, snapshot, decoded, seen)
        except StorageError as error:
            seen.findings.append(_finding(FindingKind.UNREAD, task, (label,), snapshot, error.what))
        except DamagedBatch as error:
            finding = _finding(FindingKind.SNAPSHOT_DAMAGED, task, (label,), snapshot, error.what)
            seen.findings.append(finding)
        else:
            decoded.append(found)
    if decoded:
        _compare(task, decoded, seen)
    return seen


def _decode(
    label: str, snapshot: Snapshot, others: Sequence[_Decoded], seen: SnapshotResult
) -> _Decoded:
    """Scrubs and reads a snapshot. Raises DamagedBatch, StorageError."""
    plan = plan_snapshot(snapshot)
    if plan.damages:
        raise plan.damages[0]
    digest = blake2b(digest_size=16)
    chunks: list[tuple[FileRange, bytes]] = []
    for each in plan.ranges:
        data = read_bytes(each)
        seen.bytes_read += len(data)
        digest.update(data)
        chunks.append((each, data))
    for other in others:
        if other.bytes_digest == digest.digest():
            return _Decoded(label, snapshot, other.bytes_digest, other.state, other.has_keys)
    _check_ends(snapshot, chunks)
    _check_epochs(snapshot, chunks)
    state: KeyDigests = {}
    has_keys = True
    unkeyed: Counter[bytes] = Counter()
    for each, data in chunks:
        for rows in parse("records", data, 0, _END, each.origin):
            for key, record in _digests(rows):
                if key is None:
                    has_keys = False
                    unkeyed[record] += 1
                    continue
                state[b"k" + key] = record
        for rows in parse("control", data, 0, _END, each.origin):
            state.update(_control(rows))
    state |= {b"r" + record: b"%d" % count for record, count in unkeyed.items()}
    return _Decoded(label, snapshot, digest.digest(), state, has_keys)


def _check_ends(snapshot: Snapshot, chunks: Sequence[tuple[FileRange, bytes]]) -> None:
    """A header first, a footer last. Raises DamagedBatch."""
    types = [
        kind
        for each, data in [*chunks[:1], *chunks[-1:]]
        for rows in parse("control", data, 0, _END, each.origin)
        for kind in rows["type"].to_pylist()
    ]
    path = str(snapshot.path)
    if not types or types[0] != ControlType.SNAPSHOT_HEADER:
        raise DamagedBatch("it does not begin with the header of a snapshot", None, path, 0)
    if types[-1] != ControlType.SNAPSHOT_FOOTER:
        raise DamagedBatch("it does not end with the footer of a snapshot", None, path, 0)


def _check_epochs(snapshot: Snapshot, chunks: Sequence[tuple[FileRange, bytes]]) -> None:
    """No CRC covers them; each is that of the name. Raises DamagedBatch."""
    for each, data in chunks:
        batches = walk_headers(memoryview(data)).batches
        epochs = batches.field("epoch")
        for at in np.flatnonzero(epochs != snapshot.epoch)[:1].tolist():
            what = f"a batch of epoch {epochs[at]} in a snapshot of epoch {snapshot.epoch}"
            position = each.origin.position + int(batches.positions[at])
            raise DamagedBatch(what, None, str(snapshot.path), position)


def _digests(rows: pa.RecordBatch) -> Iterator[tuple[bytes | None, bytes]]:
    """(key, digest of the rest) of each record; b"" for one whose value is null.

    Where there is no key, the rest is without time and offset: those that the writer of the snapshot chose.
    """
    columns = ("key", "value", "offset", "timestamp", "headers")
    times = rows["timestamp"].cast(pa.int64())
    lists = [(times if name == "timestamp" else rows[name]).to_pylist() for name in columns]
    for key, value, offset, time, headers in zip(*lists, strict=True):
        if value is None:
            yield key, b""
            continue
        digest = blake2b(value, digest_size=16)
        digest.update(repr(headers if key is None else (offset, time, headers)).encode())
        yield key, digest.digest()


def _control(rows: pa.RecordBatch) -> KeyDigests:
    """The control records of a snapshot, without its header and footer."""
    own = (ControlType.SNAPSHOT_HEADER, ControlType.SNAPSHOT_FOOTER)
    return {
        b"c" + name.encode(): text.encode()
        for kind, name, text in zip(
            rows["type"].to_pylist(),
            rows["type_name"].to_pylist(),
            rows["json"].to_pylist(),
            strict=True,
        )
        if kind not in own
    }


def _compare(task: SnapshotTask, decoded: Sequence[_Decoded], seen: SnapshotResult) -> None:
    groups: list[list[_Decoded]] = []
    for each in decoded:
        for group in groups:
            if group[0].state == each.state:
                group.append(each)
                break
        else:
            groups.append([each])
    from_log = _state_of_log(task, seen) if all(each.has_keys for each in decoded) else None
    if from_log is not None:
        for group in groups:
            records = {key: value for key, value in group[0].state.items() if key[:1] == b"k"}
            if records != from_log:
                right = next((each for each in groups if each is not group), [])
                what = f"it is not the state of the log: {_first_difference(records, from_log)}"
                seen.findings.append(
                    _of_group(FindingKind.SNAPSHOT_NOT_LOG, task, group, right, what)
                )
        if any(finding.kind is FindingKind.SNAPSHOT_NOT_LOG for finding in seen.findings):
            return
    if len(groups) < 2:
        return
    groups.sort(key=lambda group: -len(group))
    first, *others = groups
    has_majority = len(first) > 1 and 2 * len(first) > len(decoded)
    difference = _first_difference(others[0][0].state, first[0].state)
    if has_majority:
        for group in others:
            what = f"other contents than elsewhere: {_first_difference(group[0].state, first[0].state)}"
            seen.findings.append(_of_group(FindingKind.SNAPSHOT_DIFFERS, task, group, first, what))
    else:
        all_replicas = [each for group in groups for each in group]
        what = f"the contents differ, and no majority says which is wrong: {difference}"
        seen.findings.append(_of_group(FindingKind.SNAPSHOT_DIFFERS, task, all_replicas, [], what))


def _state_of_log(task: SnapshotTask, seen: SnapshotResult) -> KeyDigests | None:
    """The state as the log gives it; None if it can't be known."""
    if not task.ranges:
        return None
    state: KeyDigests = {}
    begin, epoch = 0, task.epoch
    try:
        if task.base is not None:
            begin = task.base.end_offset
            base = _decode("", task.base, (), seen)
            if not base.has_keys:
                return None
            state = {key: value for key, value in base.state.items() if key[:1] == b"k"}
        for part in task.ranges:
            data = read_bytes(part.range)
            seen.bytes_read += len(data)
            for rows in parse("records", data, begin, task.end_offset, part.range.origin):
                epoch = rows["epoch"][-1].as_py()
                is_data = rows["control_type"].is_null()
                for key, record in _digests(rows.filter(is_data)):
                    if key is None:
                        continue
                    if record:
                        state[b"k" + key] = record
                    else:
                        state.pop(b"k" + key, None)
    except (DamagedBatch, StorageError):
        # Damage there is found by its own range or snapshot.
        return None
    return state if epoch == task.epoch or task.is_committed else None


def _first_difference(one: Mapping[bytes, bytes], other: Mapping[bytes, bytes]) -> str:
    keys = sorted(key for key in {**one, **other} if one.get(key) != other.get(key))
    if not keys:
        return "nothing"
    kind, key = keys[0][:1], keys[0][1:]
    more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    if kind == b"k":
        return f"key {printable(key[:_KEY_SHOWN])}{more}"
    return f"{printable(key) if kind == b'c' else 'a record'}{more}"


def _of_group(
    kind: FindingKind,
    task: SnapshotTask,
    group: Sequence[_Decoded],
    right: Sequence[_Decoded],
    what: str,
) -> AuditFinding:
    labels = tuple(each.label for each in group)
    against = tuple(each.label for each in right)
    return _finding(kind, task, labels, group[0].snapshot, what, against)


def _finding(
    kind: FindingKind,
    task: SnapshotTask,
    labels: tuple[str, ...],
    snapshot: Snapshot,
    what: str,
    against: tuple[str, ...] = (),
) -> AuditFinding:
    return AuditFinding(
        kind=kind,
        offset=task.end_offset,
        end_offset=task.end_offset,
        replicas=labels,
        against=against,
        what=f"the snapshot of offset {task.end_offset}, epoch {task.epoch}: {what}",
        file=str(snapshot.path),
    )
