"""A snapshot holds what the committed log below its end makes, and covers the start of the log.

It is byte for byte the same wherever it is taken, from whatever earlier one. Source: KIP-595, "Log
Compaction and Snapshots"; KIP-630; docs/storage-format, snapshots.
"""

from __future__ import annotations

from quorumd.storage.layout import PART_SUFFIX, parse_snapshot_name
from quorumd.wire.control_records import SnapshotFooter, SnapshotHeader, decode_control_batch
from quorumd.wire.records import Record, iter_records, scan
from simulation.checkers.base import Checker, Observation
from simulation.history.facts import Facts
from simulation.history.replica import Replica

OFFSET_HEADER = "quorumd.offset"

State = dict[bytes, tuple[int, Record]]
"""By key: the offset and the record that set it last."""


class Snapshots(Checker):
    """See the module's docstring."""

    name = "snapshots stand for the committed log"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.known: dict[tuple[int, int], bytes] = {}
        self.state: State = {}
        self.taken = 0
        """So many committed batches have made `state`."""

    def on_event(self, seen: Observation) -> None:
        start = seen.now.log_start_offset
        if not start:
            return
        # A log that was just reset waits for the disk, where the snapshot is complete but for its name.
        names = (name.removesuffix(PART_SUFFIX) for name in seen.disk_files)
        found = map(parse_snapshot_name, names)
        if not any(snapshot and snapshot[0] >= start for snapshot in found):
            raise self.fail(
                f"{seen.now.local} begins at {start}, and no snapshot holds what was before"
            )

    def on_snapshot(self, replica: Replica, snapshot: tuple[int, int], data: bytes) -> None:
        """A replica has this snapshot from now on."""
        if replica.key in self.facts.excused:
            return
        where = f"the snapshot {snapshot} of {replica.key}"
        known = self.known.get(snapshot)
        if known is None:
            self._check_contents(where, snapshot[0], data)
            self.known[snapshot] = data
        elif known != data:
            raise self.fail(
                f"{where} has {len(data)} bytes, another one of the same id {len(known)}"
            )

    def _check_contents(self, where: str, end_offset: int, data: bytes) -> None:
        """The snapshot has all its parts, and what the log makes below its end."""
        batches = [data[at : at + header.size_bytes] for at, header in scan(data)]
        if sum(map(len, batches)) != len(data):
            raise self.fail(f"{where} ends in the midst of a batch")
        controls = [
            record
            for batch in batches
            if scan(batch)[0][1].is_control
            for _, record in decode_control_batch(batch)
        ]
        if not isinstance(controls[0], SnapshotHeader) or not isinstance(
            controls[-1], SnapshotFooter
        ):
            raise self.fail(f"{where} lacks its header or its footer")
        found = {
            record.key: record
            for batch in batches
            if not scan(batch)[0][1].is_control
            for record in iter_records(batch)
        }
        expected = self._state_below(end_offset)
        if list(found) != sorted(expected):
            raise self.fail(f"{where} has the keys {list(found)}, the log {sorted(expected)}")
        for key, (offset, record) in expected.items():
            one = found[key]
            in_header = dict(one.headers).get(OFFSET_HEADER)
            if (one.value, one.timestamp, in_header) != (
                record.value,
                record.timestamp,
                b"%d" % offset,
            ):
                raise self.fail(f"{where} has {one}, the log {record} at {offset}")

    def _state_below(self, end_offset: int) -> State:
        """State that the committed batches below make: most snapshots end behind the one before them."""
        batches = self.facts.committed_below(end_offset)
        if len(batches) < self.taken:
            self.state, self.taken = {}, 0
        for batch in batches[self.taken :]:
            for at, record in enumerate(self.facts.records.get(batch.identity, ())):
                if record.key is None:
                    continue
                self.state.pop(record.key, None)
                if record.value is not None:
                    self.state[record.key] = batch.base_offset + at, record
        self.taken = len(batches)
        return self.state
