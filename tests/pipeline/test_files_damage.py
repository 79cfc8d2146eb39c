"""Planted damage in segments: named where it is, and all the rest can still be read; and power failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from quorumd.pipeline.files import FilePlan, LogSegment, find_replicas, plan_segment, read_rows
from quorumd.pipeline.files import plan as plan_module
from quorumd.pipeline.parse import DamagedBatch
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import index_path, log_path
from quorumd.storage.reader import TailKind
from tests.pipeline.parsed import ALL
from tests.storage import test_crash
from tests.storage.faulty_filesystem import FaultyFileSystem, Survival
from tests.storage.helpers import (
    DIRECTORY,
    append,
    at_losses,
    batch,
    crash_points,
    open_log,
)

COUNT = 30
BATCHES = [batch(10 * i, count=10, epoch=1 + i // 8, value_bytes=200) for i in range(COUNT)]
SIZE = len(BATCHES[0])
BAD = 12
AT = BAD * SIZE
RANGE_BYTES = 5 * SIZE


@pytest.fixture(params=["closed", "active"])
def segment(request: pytest.FixtureRequest, tmp_path: Path) -> LogSegment:
    """A segment of COUNT batches, ten records each; another one follows it if it is closed."""
    assert {len(each) for each in BATCHES} == {SIZE}
    is_active = request.param == "active"
    log = open_log(RealFileSystem(), tmp_path, segment_bytes=SIZE * (COUNT + is_active))
    for number, data in enumerate(BATCHES):
        append(log, data, number * 10, number * 10 + 10)
    if not is_active:
        append(log, batch(COUNT * 10, epoch=9), COUNT * 10, COUNT * 10 + 1)
    log.close()
    found: LogSegment = find_replicas([tmp_path])[0].segments[0]
    assert found.path.stat().st_size == COUNT * SIZE
    assert found.may_be_unfinished is is_active
    return found


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Those that planning would have made, in s; no other thread's are among them."""
    made: list[float] = []
    monkeypatch.setattr(plan_module, "time", SimpleNamespace(sleep=made.append))
    return made


def plan_of(segment: LogSegment) -> FilePlan:
    return plan_segment(segment, range_bytes=RANGE_BYTES, by_index=False)


def change(segment: LogSegment, at: int, raw: bytes) -> None:
    data = bytearray(segment.path.read_bytes())
    data[at : at + len(raw)] = raw
    segment.path.write_bytes(data)


def flip(segment: LogSegment, at: int, mask: int = 1) -> None:
    change(segment, at, bytes([segment.path.read_bytes()[at] ^ mask]))


def whole_batches(plan: FilePlan) -> list[int]:
    """The numbers of the batches that can be read, by their offset."""
    return [
        offset // 10
        for each in plan.ranges
        for part in read_rows("batches", each, 0, ALL)
        for offset, is_ok in zip(
            part["base_offset"].to_pylist(), part["crc_ok"].to_pylist(), strict=True
        )
        if is_ok
    ]


def others(*bad: int) -> list[int]:
    return [number for number in range(COUNT) if number not in bad]


def test_a_sound_segment_has_no_damage(segment: LogSegment) -> None:
    plan = plan_of(segment)
    assert plan.damages == ()
    assert whole_batches(plan) == others()
    assert max(each.size_bytes for each in plan.ranges) == RANGE_BYTES


def test_a_flipped_byte_is_left_to_the_parser_which_names_it(segment: LogSegment) -> None:
    flip(segment, AT + 500)
    plan = plan_of(segment)
    assert plan.damages == ()
    assert whole_batches(plan) == others(BAD)
    (hit,) = (each for each in plan.ranges if each.start_offset <= BAD * 10 < each.end_offset)
    with pytest.raises(DamagedBatch) as caught:
        list(read_rows("records", hit, 0, ALL))
    error = caught.value
    assert (error.offset, error.position) == (BAD * 10, AT)
    assert error.file == str(segment.path)
    # Ranges of offsets without it can be read.
    assert list(read_rows("records", hit, BAD * 10 + 10, ALL))


@pytest.mark.parametrize(
    ("at", "raw"),
    [
        (16, b"\x03"),  # magic
        (8, (SIZE - 12 + 40).to_bytes(4, "big")),  # size
        (8, (SIZE - 12 - 40).to_bytes(4, "big")),
        (8, (2 * SIZE - 12).to_bytes(4, "big")),
        (8, (1 << 30).to_bytes(4, "big")),
        (8, (-1).to_bytes(4, "big", signed=True)),
        (8, (0).to_bytes(4, "big")),
        (0, b"\x80"),  # a negative offset
        (0, b"\xff" * SIZE),
        (0, b"\0" * SIZE),
    ],
)
def test_a_batch_that_is_none_is_named_and_skipped(
    segment: LogSegment, at: int, raw: bytes
) -> None:
    change(segment, AT + at, raw)
    plan = plan_of(segment)
    first = plan.damages[0]
    assert (first.offset, first.position, first.file) == (BAD * 10, AT, str(segment.path))
    assert whole_batches(plan) == others(BAD)
    assert plan.end_offset == COUNT * 10


def test_sectors_that_did_not_reach_the_disk_are_torn_only_where_a_node_may_write(
    segment: LogSegment,
) -> None:
    change(segment, AT, bytes(SIZE))
    segment.path.write_bytes(segment.path.read_bytes() + bytes(4096))
    plan = plan_of(segment)
    if segment.may_be_unfinished:
        assert (plan.tail.kind, plan.tail.position) == (TailKind.TORN, AT)
        assert plan.damages == ()
        assert whole_batches(plan) == list(range(BAD))
    else:
        assert [damage.offset for damage in plan.damages] == [BAD * 10, COUNT * 10]
        assert whole_batches(plan) == others(BAD)


def test_a_batch_without_the_sector_in_which_it_begins_is_torn(tmp_path: Path) -> None:
    """Its CRC is right, because that does not cover its offset."""
    first = batch(0, count=1, value_bytes=431)
    second = batch(1, count=1, value_bytes=600)
    assert len(first) % 512 == 504
    path = log_path(tmp_path, 0)
    path.write_bytes(first + bytes(8) + second[8:] + bytes(4096))
    segment = find_replicas([tmp_path])[0].segments[0]
    plan = plan_of(segment)
    assert plan.damages == ()
    assert (plan.tail.kind, plan.tail.position) == (TailKind.TORN, len(first))
    assert plan.end_offset == 1
    path.write_bytes(first + b"\1" + bytes(7) + second[8:] + bytes(4096))
    (damage,) = plan_of(segment).damages
    assert damage.position == len(first)


def test_what_a_node_is_writing_at_the_moment_is_looked_at_again(
    segment: LogSegment, pauses: list[float]
) -> None:
    class Writing(RealFileSystem):
        def pread(self, handle: int, size: int, at: int) -> bytes:
            data = bytearray(super().pread(handle, size, at))
            if not pauses and at <= AT + 16 < at + len(data):
                data[AT + 16 - at] = 0
            return bytes(data)

    plan = plan_segment(segment, range_bytes=RANGE_BYTES, by_index=False, fs=Writing())
    if segment.may_be_unfinished:
        assert len(pauses) == 1
        assert plan == plan_of(segment)
        assert plan.damages == ()
    else:
        assert pauses == []
        assert len(plan.damages) == 1


def test_a_file_with_many_bad_places_is_not_waited_for_at_each(
    segment: LogSegment, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "_PAUSES_MAX", 3)
    bad = range(0, COUNT, 2)
    for number in bad:
        change(segment, number * SIZE + 16, b"\x07")
    plan = plan_of(segment)
    assert len(pauses) == (3 if segment.may_be_unfinished else 0)
    assert [damage.offset for damage in plan.damages] == [number * 10 for number in bad]
    assert whole_batches(plan) == others(*bad)


def test_two_places_are_both_named(segment: LogSegment) -> None:
    for number in (3, BAD):
        change(segment, number * SIZE + 16, b"\x07")
    plan = plan_of(segment)
    assert [damage.offset for damage in plan.damages] == [30, BAD * 10]
    assert whole_batches(plan) == others(3, BAD)


def test_a_missing_batch_leaves_a_hole_that_is_named(segment: LogSegment) -> None:
    data = segment.path.read_bytes()
    segment.path.write_bytes(data[:AT] + data[AT + SIZE :])
    plan = plan_of(segment)
    (damage,) = plan.damages
    assert (damage.offset, damage.position) == (BAD * 10, AT)
    assert "a batch with offset 130 where 120 must follow" in damage.what
    assert whole_batches(plan) == others(BAD)


def test_a_batch_that_is_there_twice_is_named(segment: LogSegment) -> None:
    data = segment.path.read_bytes()
    segment.path.write_bytes(data[:AT] + data[AT - SIZE : AT] + data[AT:])
    plan = plan_of(segment)
    assert [(damage.offset, damage.position) for damage in plan.damages] == [(120, AT)]
    assert whole_batches(plan) == [*range(BAD), BAD - 1, *range(BAD, COUNT)]


def test_a_changed_offset_is_named(segment: LogSegment) -> None:
    change(segment, AT, (5_000).to_bytes(8, "big"))
    plan = plan_of(segment)
    assert [damage.position for damage in plan.damages] == [AT, AT + SIZE]
    assert len(whole_batches(plan)) == COUNT


def test_a_changed_offset_of_the_first_batch_is_named_whatever_the_index_says(
    segment: LogSegment,
) -> None:
    change(segment, 0, (5_000).to_bytes(8, "big"))
    plan = plan_segment(segment, range_bytes=RANGE_BYTES)
    assert [damage.position for damage in plan.damages] == [0, SIZE]
    assert len(whole_batches(plan)) == COUNT


def test_the_first_batch_must_have_the_offset_of_the_files_name(segment: LogSegment) -> None:
    renamed = log_path(segment.path.parent, 7)
    segment.path.rename(renamed)
    index = index_path(segment.path.parent, 0)
    if index.exists():
        index.rename(index_path(index.parent, 7))
    for by_index in (True, False):
        plan = plan_segment(replace(segment, path=renamed, base_offset=7), by_index=by_index)
        (damage,) = plan.damages
        assert (damage.position, damage.what) == (0, "a batch with offset 0 where 7 must follow")


def test_the_end_of_a_closed_segment_is_damage_and_of_an_active_one_a_torn_write(
    segment: LogSegment,
) -> None:
    data = segment.path.read_bytes()
    for size in (COUNT * SIZE - 1, COUNT * SIZE - SIZE + 30):
        segment.path.write_bytes(data[:size])
        plan = plan_of(segment)
        last = (COUNT - 1) * SIZE
        assert whole_batches(plan) == others(COUNT - 1)
        assert plan.end_offset == COUNT * 10 - 10
        assert plan.tail.position == last
        if segment.may_be_unfinished:
            assert plan.damages == ()
            assert plan.tail.kind is TailKind.TORN
        else:
            (damage,) = plan.damages
            assert (damage.offset, damage.position) == (COUNT * 10 - 10, last)
            assert plan.tail.kind is TailKind.DAMAGE


def test_a_last_batch_with_wrong_contents_is_torn_only_where_a_node_may_write(
    segment: LogSegment,
) -> None:
    last = (COUNT - 1) * SIZE
    flip(segment, last + 500)
    plan = plan_of(segment)
    assert plan.damages == ()
    assert whole_batches(plan) == others(COUNT - 1)
    if segment.may_be_unfinished:
        assert (plan.tail.kind, plan.tail.position) == (TailKind.TORN, last)
    else:
        with pytest.raises(DamagedBatch, match=f"offset {COUNT * 10 - 10} "):
            list(read_rows("records", plan.ranges[-1], 0, ALL))


def test_zeros_behind_a_closed_segment_are_damage(segment: LogSegment) -> None:
    segment.path.write_bytes(segment.path.read_bytes() + bytes(300))
    plan = plan_of(segment)
    assert whole_batches(plan) == others()
    if segment.may_be_unfinished:
        assert (plan.tail.kind, plan.damages) == (TailKind.ZEROS, ())
    else:
        assert len(plan.damages) == 1


def test_any_byte_changed_is_named_by_plan_or_parser_and_never_more_than_its_batch_is_lost(
    segment: LogSegment,
) -> None:
    data = segment.path.read_bytes()
    random = Random(7)
    header = [BAD * SIZE + i for i in range(61)]
    for at in (*header, *(random.randrange(SIZE, (COUNT - 1) * SIZE) for _ in range(60))):
        changed = bytearray(data)
        changed[at] ^= 1 << random.randrange(8)
        segment.path.write_bytes(changed)
        plan = plan_of(segment)
        number = at // SIZE
        found = whole_batches(plan)
        if at % SIZE < 8:
            assert len(plan.damages) == 2
            assert len(found) == COUNT
        elif 12 <= at % SIZE < 16:
            # The epoch: nothing but the batches before and behind it give it away.
            assert found == others()
        else:
            assert found == others(number)
            positions = [damage.position for damage in plan.damages]
            assert positions in ([], [number * SIZE])


@pytest.mark.long
@pytest.mark.parametrize("survival", Survival)
@pytest.mark.parametrize(
    ("batches_per_sync", "is_large"), [(1, False), (4, False), (5, True)], ids=str
)
def test_after_any_power_failure_the_data_ends_where_a_start_ends_it(
    batches_per_sync: int, is_large: bool, survival: Survival
) -> None:
    points = list(crash_points(test_crash.Story(batches_per_sync, is_large).run))

    def look(at: int, story: test_crash.Story, fs: FaultyFileSystem) -> None:
        found = fs.crash(survival, Random(at))
        log = story.reopen(fs.crash(survival, Random(at)))
        if not found.listdir(DIRECTORY):
            return
        (replica,) = find_replicas([DIRECTORY], found)
        end = None
        for each in replica.segments:
            plan = plan_segment(each, range_bytes=2_000, fs=found)
            data = found.contents(each.path)
            whole = b"".join(
                data[part.origin.position : part.origin.position + part.size_bytes]
                for part in plan.ranges
            )
            assert plan.damages == (), (at, survival)
            assert data.startswith(whole)
            assert end in (None, plan.start_offset)
            end = plan.end_offset
        assert end == log.log_end_offset, (at, survival)

    chosen = frozenset(points[::5] if len(points) < 1000 else points[::29])
    at_losses(test_crash.Story(batches_per_sync, is_large), chosen, look)


def test_what_the_index_leaves_unseen_is_named_by_whoever_reads_the_range(tmp_path: Path) -> None:
    log = open_log(RealFileSystem(), tmp_path, segment_bytes=SIZE * COUNT)
    for number, data in enumerate(BATCHES):
        append(log, data, number * 10, number * 10 + 10)
    append(log, batch(COUNT * 10, epoch=9), COUNT * 10, COUNT * 10 + 1)
    log.close()
    segment = find_replicas([tmp_path])[0].segments[0]
    sound = plan_segment(segment, range_bytes=RANGE_BYTES)
    change(segment, AT + 8, (SIZE - 12 + 40).to_bytes(4, "big"))
    plan = plan_segment(segment, range_bytes=RANGE_BYTES)
    assert plan == sound
    (hit,) = (each for each in plan.ranges if each.start_offset <= BAD * 10 < each.end_offset)
    for each in plan.ranges:
        if each != hit:
            assert list(read_rows("records", each, 0, ALL))
    with pytest.raises(DamagedBatch) as caught:
        list(read_rows("records", hit, 0, ALL))
    assert (caught.value.offset, caught.value.position) == (BAD * 10, AT)
    assert plan_segment(segment, by_index=False).damages[0].position == AT
