"""What `quorumd.storage.verify` makes of the last offset, and of times that are equal."""

from __future__ import annotations

import pytest

from quorumd.raft.types import SnapshotId
from quorumd.storage.layout import log_path, snapshot_path
from quorumd.storage.snapshot_file import SnapshotWriter
from quorumd.wire.control_records import ProducerStatesBatch, ProducerStatesProducer
from quorumd.wire.records import Record, build_batch, read_header
from tests.server.snapshot_logs import with_crc
from tests.storage.helpers import DIRECTORY, START_MS, append, batch, empty_disk, open_log
from tests.storage.verified_node import Node
from tests.storage.verifying import put_real_snapshot, verified


@pytest.mark.parametrize(("offset", "is_sound"), [(0, True), (4, True), (5, False), (6, False)])
@pytest.mark.parametrize("what", ["record", "producer"])
def test_a_snapshot_speaks_of_nothing_from_its_end_on(
    what: str, offset: int, is_sound: bool
) -> None:
    fs, snapshot_id = empty_disk(), SnapshotId(5, 1)
    path = snapshot_path(DIRECTORY, snapshot_id)
    last = ProducerStatesBatch(
        first_sequence=0, last_sequence=0, base_offset=offset, last_offset=offset
    )
    producer = ProducerStatesProducer(producer_id=7, epoch=0, batches=(last,))
    producers = () if what == "record" else (producer,)
    writer = SnapshotWriter(fs, path, snapshot_id, START_MS, (), producers)
    own = (("quorumd.offset", b"%d" % (offset if what == "record" else 0)),)
    record = Record(timestamp=START_MS, key=b"k", value=b"v", headers=own)
    writer.write_batch([build_batch([record], base_offset=writer.next_offset, epoch=1)], 1)
    writer.finish()
    said = {
        "record": f"key b'k' has a record with offset {offset}, and the snapshot ends at 5",
        "producer": "producer 7 has a batch beyond the end of the snapshot, 5",
    }
    done = verified(path, fs)
    assert [finding.what for finding in done.findings] == ([] if is_sound else [said[what]])


def test_records_of_one_time_and_of_none_make_no_index_wrong() -> None:
    fs = empty_disk()
    log = open_log(fs, segment_bytes=1000, index_interval_bytes=100)
    times = [START_MS, START_MS, START_MS - 1, START_MS, -1]
    for offset in range(60):
        append(log, batch(offset, timestamp=times[offset % 5]), offset, offset + 1)
    log.close()
    done = verified(DIRECTORY, fs)
    assert done.texts == []
    assert done.facts.segments > 3
    assert done.facts.end_offset == 60


def test_a_batch_without_records_takes_no_offset_and_is_named() -> None:
    """A cleaned log of Kafka's keeps empty batches with their offsets: this one has none, either."""
    fs = empty_disk()
    log = open_log(fs)
    append(log, batch(0), 0, 1)
    log.close()
    empty = bytearray(build_batch([Record(timestamp=START_MS)], base_offset=1, epoch=1)[:61])
    empty[8:12] = (61 - 12).to_bytes(4, "big")
    empty[23:27] = (-1).to_bytes(4, "big", signed=True)
    empty[57:61] = bytes(4)
    path = log_path(DIRECTORY, 0)
    fs.put(path, fs.contents(path)[: len(batch(0))] + with_crc(bytes(empty)))
    (finding,) = verified(path, fs).findings
    assert (finding.what, finding.offset) == ("0 records in 0 offsets", 1)


def test_a_snapshot_whose_end_is_that_of_what_is_committed_must_be_of_the_log() -> None:
    node = Node()
    epoch = read_header(node.batches.data[-1]).epoch
    put_real_snapshot(node.fs, node.ends[-1], epoch + 1)
    done = node.verified()
    [text] = done.texts
    assert f"its epoch is {epoch + 1}, but the record before its end" in text
    assert done.notes == []
