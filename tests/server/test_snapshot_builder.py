"""Snapshots are built: the same bytes from whatever base and with however little memory."""

from __future__ import annotations

import errno
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumd.raft.types import SnapshotId
from quorumd.server.model.producer_state import ProducerState
from quorumd.server.snapshots import snapshot_builder
from quorumd.server.snapshots.snapshot_builder import BuiltSnapshot, SnapshotBuilder
from quorumd.storage import sorted_runs
from quorumd.storage import spillable_map as spilling_table
from quorumd.storage.errors import (
    DamagedLog,
    DamagedSnapshot,
    DiskFailed,
    DiskFull,
    UnsuitableOffset,
)
from quorumd.storage.layout import is_part, log_path, part_path, snapshot_path
from quorumd.storage.snapshot_file import read_facts, verify_snapshot
from quorumd.storage.snapshot_store import SnapshotStore
from quorumd.wire import snapshot_records
from quorumd.wire.control_records import LeaderChange, UnknownControl
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import Record, build_batch, iter_records, read_header, scan
from tests.server.snapshot_logs import (
    LOGS,
    Batches,
    build,
    expected_snapshot,
    random_batches,
    with_attributes,
    with_crc,
    write_log,
)
from tests.storage.faulty_filesystem import FaultyFileSystem, PowerLoss, Survival
from tests.storage.helpers import DIRECTORY, START_MS, empty_disk
from tests.support.claimed_offsets import gzip_claiming

EPOCH_END = 16
"""Of a batch's header."""


def disk_with(batches: Batches, *, segment_bytes: int = 20_000) -> FaultyFileSystem:
    fs = empty_disk()
    write_log(fs, batches, segment_bytes=segment_bytes)
    return fs


def log_of(*batches: tuple[list[Record], int]) -> Batches:
    """Batches with these records and codecs."""
    made = Batches(Random(0))
    made.add_control(LeaderChange(leader_id=1))
    for records, codec in batches:
        made.add(
            build_batch(records, base_offset=made.ends[-1], epoch=1, codec=codec), len(records)
        )
    return made


def records_in(data: bytes) -> dict[bytes, bytes]:
    """Keys and values of a snapshot."""
    found = {}
    for at, header in scan(data):
        if not header.is_control:
            for record in iter_records(data[at : at + header.size_bytes]):
                assert record.key is not None
                assert record.value is not None
                found[record.key] = record.value
    return found


def parts(fs: FaultyFileSystem) -> list[str]:
    return [name for name in fs.listdir(DIRECTORY) if is_part(name)]


# The same everywhere


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(
    batches=LOGS,
    at=st.tuples(st.integers(0, 2**32), st.integers(0, 2**32)),
    segment_bytes=st.sampled_from([600, 20_000, 1 << 20]),
    memory_bytes=st.sampled_from([1, 3_000, 30_000]),
    batch_bytes=st.sampled_from([300, 1 << 20]),
)
def test_the_bytes_depend_on_the_log_alone(
    batches: Batches,
    at: tuple[int, int],
    segment_bytes: int,
    memory_bytes: int,
    batch_bytes: int,
) -> None:
    ends = batches.ends[1:]
    end = ends[at[0] % len(ends)]
    earlier = [each for each in ends if each < end]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_records, "SNAPSHOT_BATCH_BYTES", batch_bytes)
        patch.setattr(spilling_table, "FAN_IN", 3)
        patch.setattr(spilling_table, "BLOCK_BYTES", 1_000)
        patch.setattr(sorted_runs, "LARGE_BYTES", 5_000)
        patch.setattr(snapshot_builder, "STEP_RECORDS", 7)
        patch.setattr(snapshot_builder, "STEP_BYTES", 500)
        snapshot_id, expected = expected_snapshot(batches, end)
        fs = disk_with(batches, segment_bytes=segment_bytes)

        built, data = build(fs, end)
        assert (built.id, data) == (snapshot_id, expected)
        assert build(fs, end, memory_bytes=memory_bytes) == (built, expected)
        if earlier:
            base = earlier[at[1] % len(earlier)]
            build(fs, base, complete=True, memory_bytes=memory_bytes)
            assert build(fs, end)[1] == expected
            assert build(fs, end, memory_bytes=memory_bytes)[1] == expected
            # Without the segments that the base makes superfluous.
            names = [name for name in fs.listdir(DIRECTORY) if name.endswith(".log")]
            for name, following in pairwise(names):
                if int(following[:20]) <= base:
                    fs.remove(DIRECTORY / name)
            assert build(fs, end, complete=True)[1] == expected
            path = snapshot_path(DIRECTORY, snapshot_id)
            assert verify_snapshot(fs, path, snapshot_id) == read_facts(fs, path, snapshot_id)
    assert fs.open_handles == 0
    assert parts(fs) == []


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(batches=LOGS, cuts=st.lists(st.integers(0, 2**32), min_size=2, max_size=5))
def test_a_chain_of_snapshots_ends_as_one_from_the_start(batches: Batches, cuts: list[int]) -> None:
    fs = disk_with(batches)
    ends = sorted({batches.ends[1:][cut % (len(batches.ends) - 1)] for cut in cuts})
    for end in ends:
        assert build(fs, end, complete=True)[1] == expected_snapshot(batches, end)[1]


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**64),
    codec=st.integers(0, 4),
    at=st.integers(0, 2**32),
    value=st.integers(0, 255),
    count=st.integers(-1, 1),
)
def test_a_batch_is_empty_if_readers_find_it_so(
    seed: int, codec: int, at: int, value: int, count: int
) -> None:
    """Its contents or its number of records are changed, and its CRC is right again."""
    draw = Random(seed)
    records = [
        Record(START_MS, START_MS, b"%d" % n, b"v" * 30) for n in range(draw.randrange(1, 60))
    ]
    batch = build_batch(records, base_offset=1, epoch=1, codec=codec)
    where = 61 + at % (len(batch) - 61)
    changed = bytearray(batch)
    changed[where] = value
    changed[57:61] = (len(records) + count).to_bytes(4, "big")
    batches = log_of()
    batches.add(with_crc(bytes(changed)), len(records))
    try:
        expected = {record.key: record.value for record in iter_records(batches.data[1])}
        is_empty = False
    except CorruptBatch:
        expected, is_empty = {}, True
    built, data = build(disk_with(batches), batches.ends[-1], memory_bytes=1 + draw.randrange(5000))
    assert built.empty_batches == is_empty
    assert records_in(data) == {
        key: value for key, value in expected.items() if key is not None and value is not None
    }


def test_producers_are_those_that_every_replica_remembers() -> None:
    batches = random_batches(5, 60)
    fs = disk_with(batches)
    built, _ = build(fs, batches.ends[-1], complete=True)
    noted = ProducerState()
    for data in batches.data:
        noted.note(read_header(data))
    loaded = ProducerState()
    loaded.load(SnapshotStore(fs, DIRECTORY).open()[-1].producers)
    assert len(noted) > 3
    assert list(loaded.remembered().items()) == list(noted.remembered().items())
    assert built.empty_batches > 0


# What it is built from


def test_the_newest_earlier_snapshot_is_built_on_and_nothing_before_it_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = random_batches(3, 60)
    fs = disk_with(batches, segment_bytes=5000)
    ends = batches.ends
    for number in (10, 50, 61):
        build(fs, ends[number], complete=True)
    ids = SnapshotStore(fs, DIRECTORY).open()
    opened: list[Path] = []
    fs_open = fs.open

    def note_open(path: Path, *, writable: bool = False, create: bool = False) -> int:
        opened.append(path)
        return fs_open(path, writable=writable, create=create)

    monkeypatch.setattr(fs, "open", note_open)
    steps = SnapshotBuilder(fs, DIRECTORY, ends[60]).run()
    for _ in steps:
        pass
    used = [path for path in opened if path.suffix == ".checkpoint"]
    assert used.count(snapshot_path(DIRECTORY, ids[1].id)) == 2
    assert used.count(snapshot_path(DIRECTORY, ids[0].id)) == 1, "only what it says at first"
    segments = {int(path.stem) for path in opened if path.suffix == ".log"}
    first = max(base for base in segments if base <= ends[50])
    assert min(segments) == first > 0


def test_a_damaged_earlier_snapshot_is_passed_over() -> None:
    batches = random_batches(3, 30)
    fs = disk_with(batches)
    for number in (10, 20):
        build(fs, batches.ends[number], complete=True)
    newest = SnapshotStore(fs, DIRECTORY).open()[-1].id
    path = snapshot_path(DIRECTORY, newest)
    fs.put(path, fs.contents(path)[:-1])
    end = batches.ends[-1]
    assert build(fs, end)[1] == expected_snapshot(batches, end)[1]


def test_damage_among_the_records_of_the_base_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_records, "SNAPSHOT_BATCH_BYTES", 600)
    records = [Record(START_MS, START_MS, b"%d" % n, b"v" * 500) for n in range(9)]
    fs = disk_with(log_of((records, 0), ([Record()], 0)))
    build(fs, 10, complete=True)
    path = snapshot_path(DIRECTORY, SnapshotId(10, 1))
    fs.flip(path, len(fs.contents(path)) // 2)
    with pytest.raises(DamagedSnapshot, match="CRC") as caught:
        build(fs, 11, memory_bytes=1)
    assert caught.value.path == path
    assert parts(fs) == []
    assert fs.open_handles == 0


# What cannot be built


@pytest.mark.parametrize(
    ("end", "problem"),
    [
        (0, "the log begins at offset 0"),
        (2, r"offset 2 is inside the batch 1 \.\. 2"),
        (8, "the log ends at offset 7"),
        (1 << 40, "the log ends at offset 7"),
    ],
)
def test_an_offset_where_none_can_end_is_refused(end: int, problem: str) -> None:
    records = [Record(START_MS, START_MS, b"k", b"v")] * 2
    fs = disk_with(log_of((records, 0), (records, 1), (records, 0)))
    before = fs.listdir(DIRECTORY)
    with pytest.raises(UnsuitableOffset, match=problem):
        build(fs, end)
    assert fs.listdir(DIRECTORY) == before
    assert fs.open_handles == 0


def test_damage_in_the_middle_is_named_and_nothing_is_left() -> None:
    batches = random_batches(8, 40)
    fs = disk_with(batches, segment_bytes=5000)
    path = log_path(DIRECTORY, 0)
    fs.flip(path, len(fs.contents(path)) // 2)
    before = fs.listdir(DIRECTORY)
    with pytest.raises(DamagedLog) as caught:
        build(fs, batches.ends[-1], memory_bytes=1)
    assert caught.value.path == path
    assert fs.listdir(DIRECTORY) == before
    assert fs.open_handles == 0


def test_an_epoch_behind_a_snapshot_that_is_older_than_its_own_is_damage() -> None:
    """No CRC covers it."""
    batches = Batches(Random(0), epoch=2)
    for _ in range(3):
        batches.add_control(LeaderChange(leader_id=1))
    fs = disk_with(batches)
    build(fs, 2, complete=True)
    path = log_path(DIRECTORY, 0)
    fs.flip(path, sum(map(len, batches.data[:2])) + EPOCH_END - 1, mask=3)
    with pytest.raises(DamagedLog):
        build(fs, 3)


def test_a_control_batch_that_makes_no_sense_is_damage() -> None:
    batches = log_of()
    batches.add_control(UnknownControl(6, b"?"))
    with pytest.raises(DamagedLog, match="a control batch can't be read"):
        build(disk_with(batches), 2)


def test_a_damaged_snapshot_that_nothing_stands_in_for_is_named() -> None:
    batches = random_batches(8, 40)
    fs = disk_with(batches, segment_bytes=5000)
    built, _ = build(fs, batches.ends[30], complete=True)
    first, *_ = sorted(name for name in fs.listdir(DIRECTORY) if name.endswith(".log"))
    fs.remove(DIRECTORY / first)
    path = snapshot_path(DIRECTORY, built.id)
    whole = fs.contents(path)
    fs.put(path, whole[:-1])
    with pytest.raises(DamagedSnapshot, match="not a whole snapshot") as caught:
        build(fs, batches.ends[-1])
    assert caught.value.path == path
    with pytest.raises(DamagedLog, match="no snapshot holds what was before"):
        build(fs, batches.ends[30])
    fs.put(path, whole)
    assert build(fs, batches.ends[-1])[1] == expected_snapshot(batches, batches.ends[-1])[1]


def test_a_gap_before_the_log_is_damage() -> None:
    batches = random_batches(8, 40)
    fs = disk_with(batches, segment_bytes=5000)
    build(fs, batches.ends[1], complete=True)
    names = [name for name in fs.listdir(DIRECTORY) if name.endswith(".log")]
    for name in names[:2]:
        fs.remove(DIRECTORY / name)
    with pytest.raises(DamagedLog, match="no snapshot holds what was before"):
        build(fs, batches.ends[-1])


# Disks


def test_a_disk_that_fills_up_at_any_write_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling_table, "FAN_IN", 3)
    batches = random_batches(11, 25)
    fs = disk_with(batches)
    before = fs.listdir(DIRECTORY)
    pwritev = fs.pwritev
    failures = 0
    for number in range(10_000):
        left = number

        def failing(handle: int, buffers: list[bytes], at: int) -> int:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, "no space left on device")
            return pwritev(handle, buffers, at)

        monkeypatch.setattr(fs, "pwritev", failing)
        try:
            build(fs, batches.ends[-1], memory_bytes=5_000)
        except DiskFull:
            failures += 1
        else:
            break
        assert fs.listdir(DIRECTORY) == before
        assert fs.open_handles == 0
    assert failures > 20


@pytest.mark.parametrize("call", ["pread", "fsync", "create", "pwritev", "open", "unlink"])
def test_a_disk_that_fails_is_called_so(call: str) -> None:
    batches = random_batches(11, 25)
    fs = disk_with(batches)
    fs.errors[call] = errno.EIO
    with pytest.raises(DiskFailed):
        build(fs, batches.ends[-1], memory_bytes=1)
    assert fs.open_handles == 0
    fs.errors.clear()
    SnapshotStore(fs, DIRECTORY).drop_build(batches.ends[-1])
    end = batches.ends[-1]
    assert build(fs, end)[1] == expected_snapshot(batches, end)[1]


def test_power_is_lost_at_any_moment_and_the_next_life_builds_the_same() -> None:
    batches = random_batches(21, 6)
    end = batches.ends[-1]
    expected = expected_snapshot(batches, end)[1]
    start = disk_with(batches)
    for crash_at in range(1, 10_000):
        fs = start.crash(Survival.KEEP, Random(1))
        fs.crash_at = crash_at
        builder = SnapshotBuilder(fs, DIRECTORY, end, memory_bytes=1)
        steps = builder.run()
        try:
            for _ in steps:
                pass
        except PowerLoss:
            pass
        else:
            break
        after = fs.crash(Survival.PAGES, Random(crash_at))
        assert SnapshotStore(after, DIRECTORY).open() == []
        SnapshotStore(after, DIRECTORY).drop_build(end)
        assert build(after, end)[1] == expected
    assert crash_at > 20


# Steps


@pytest.mark.long
def test_a_build_that_is_given_up_leaves_parts_until_they_are_discarded() -> None:
    batches = random_batches(11, 40)
    fs = disk_with(batches)
    total = sum(
        1 for _ in SnapshotBuilder(fs, DIRECTORY, batches.ends[-1], memory_bytes=5_000).run()
    )
    SnapshotStore(fs, DIRECTORY).drop_build(batches.ends[-1])
    seen = 0
    for number in range(total):
        builder = SnapshotBuilder(fs, DIRECTORY, batches.ends[-1], memory_bytes=5_000)
        steps = builder.run()
        for _ in range(number):
            next(steps)
        steps.close()
        assert fs.open_handles == 0
        seen += bool(parts(fs))
        builder.discard()
        assert parts(fs) == []
    assert seen > total // 2


def test_an_abandoned_build_does_not_touch_the_disk_of_a_later_life() -> None:
    batches = random_batches(11, 40)
    fs = disk_with(batches)
    steps = SnapshotBuilder(fs, DIRECTORY, batches.ends[-1], memory_bytes=5_000).run()
    while not parts(fs):
        next(steps)
    calls = fs.calls
    del steps
    assert fs.calls == calls


def test_nothing_is_named_as_a_snapshot_by_the_builder() -> None:
    batches = random_batches(11, 40)
    fs = disk_with(batches)
    for _ in SnapshotBuilder(fs, DIRECTORY, batches.ends[-1]).run():
        pass
    assert [name for name in fs.listdir(DIRECTORY) if name.endswith(".checkpoint")] == []
    (name,) = parts(fs)
    assert fs._live[DIRECTORY / name].durable == fs.contents(DIRECTORY / name)


def test_progress_grows_and_comes_to_its_end() -> None:
    batches = random_batches(11, 200)
    fs = disk_with(batches)
    build(fs, batches.ends[100], complete=True)
    seen = list(SnapshotBuilder(fs, DIRECTORY, batches.ends[-1]).run())
    assert len({progress.total_bytes for progress in seen}) == 1
    done = [progress.done_bytes for progress in seen]
    assert done == sorted(done)
    assert 0 < done[0] < done[-1] <= seen[-1].total_bytes


# Large things


def test_a_batch_that_unpacks_to_much_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but a limit of memory tells a large batch from others."""
    held = 0
    added = spilling_table.SpillableMap.added

    def watched(table: spilling_table.SpillableMap, count: int, size_bytes: int) -> bool:
        nonlocal held
        held = max(held, sum(map(len, table.newest.values())))
        return added(table, count, size_bytes)

    monkeypatch.setattr(spilling_table.SpillableMap, "added", watched)
    records = [Record(START_MS, START_MS, b"%05d" % n, bytes(1000)) for n in range(5000)]
    batches = log_of((records, 4), (records[:2000], 0))
    assert len(batches.data[1]) < 100_000
    fs = disk_with(batches, segment_bytes=8 << 20)
    built, data = build(fs, 7001, memory_bytes=300_000)
    assert held < 500_000
    assert built.records == 5000
    assert data == build(fs, 7001)[1]
    assert held > 2_000_000
    assert records_in(data) == {record.key: record.value for record in records}


@pytest.mark.long
def test_a_record_larger_than_any_batch_of_a_log_is_in_the_snapshot() -> None:
    value = bytes(20 << 20)
    batches = log_of(
        ([Record(START_MS, START_MS, b"large", value), Record(START_MS, START_MS, b"a", b"v")], 4),
        ([Record(START_MS, START_MS, b"z", b"w")], 0),
    )
    fs = disk_with(batches)
    for memory_bytes in (1, 64 << 20):
        built, data = build(fs, 3, memory_bytes=memory_bytes)
        assert records_in(data) == {b"a": b"v", b"large": value}
    build(fs, 3, complete=True)
    assert records_in(build(fs, 4, memory_bytes=1)[1]) == {b"a": b"v", b"large": value, b"z": b"w"}
    path = snapshot_path(DIRECTORY, built.id)
    assert verify_snapshot(fs, path, built.id).size_bytes > len(value)


def test_a_compressed_batch_with_an_unknown_codec_is_empty() -> None:
    batches = log_of(([Record(START_MS, START_MS, b"k", b"old")], 0))
    lost = build_batch([Record(START_MS, START_MS, b"k", b"new")], base_offset=2, epoch=1)
    batches.add(with_attributes(lost, 5), 1)
    built, data = build(disk_with(batches), 3)
    assert (built.empty_batches, records_in(data)) == (1, {b"k": b"old"})


def test_the_result_is_what_its_caller_needs() -> None:
    batches = log_of(([Record(START_MS, START_MS, b"k", b"v")], 0))
    fs = disk_with(batches)
    built, data = build(fs, 2)
    assert built == BuiltSnapshot(
        id=SnapshotId(2, 1), size_bytes=len(data), records=1, empty_batches=0
    )
    assert part_path(DIRECTORY, built.id).name == "00000000000000000002-0000000001.checkpoint.part"


@pytest.mark.parametrize("memory_bytes", [1, 64 << 20])
def test_a_compressed_record_has_the_offset_of_its_place(memory_bytes: int) -> None:
    made = log_of(([Record(key=b"x", value=b"1")], 0))
    made.add(gzip_claiming((0, 100_000, 1, -7), base_offset=made.ends[-1]), 4)
    first = made.ends[-2]
    _, data = build(disk_with(made), made.ends[-1], memory_bytes=memory_bytes)
    assert data == expected_snapshot(made, made.ends[-1])[1]
    found = {}
    for at, header in scan(data):
        if not header.is_control:
            for record in iter_records(data[at : at + header.size_bytes]):
                found[record.key] = record.headers[-1][1]
    assert found == {
        b"x": b"%d" % (first - 1),
        **{b"%d" % place: b"%d" % (first + place) for place in range(4)},
    }


def test_a_snapshot_is_built_anew_in_the_place_of_one_that_ends_there() -> None:
    """Of what it was made of, and not of itself: it may be damaged."""
    batches = random_batches(5, 12)
    end = batches.ends[-1]
    snapshot_id, expected = expected_snapshot(batches, end)
    fs = disk_with(batches)
    build(fs, end, complete=True)
    assert build(fs, end)[1] == expected
    path = snapshot_path(DIRECTORY, snapshot_id)
    for part in range(1, 10):
        fs.put(path, expected)
        fs.flip(path, len(expected) * part // 10)
        built, data = build(fs, end)
        assert (built.id, data) == (snapshot_id, expected)


@pytest.mark.pure
def test_a_bug_leaves_no_more_behind_than_a_disk_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    batches = random_batches(5, 12)
    fs = disk_with(batches)
    monkeypatch.setattr(snapshot_builder, "RecordPacker", broken)
    with pytest.raises(ZeroDivisionError):
        build(fs, batches.ends[-1])
    assert parts(fs) == []
    assert fs.open_handles == 0


def test_the_greatest_time_of_records_of_before_1970_is_theirs() -> None:
    batches = Batches(Random(0))
    for timestamp in (-9_000, -7_000, -8_000):
        record = Record(timestamp=timestamp, key=b"a", value=b"x")
        batches.add(build_batch([record], base_offset=batches.ends[-1], epoch=1), 1)
    fs = disk_with(batches)
    build(fs, 3, complete=True)
    snapshot_id = SnapshotId(3, 1)
    facts = read_facts(fs, snapshot_path(DIRECTORY, snapshot_id), snapshot_id)
    assert facts.last_contained_log_timestamp == -7_000
