"""Sorted runs and the table that spills into them: against a dict, and on disks that fail."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumd.storage import sorted_runs
from quorumd.storage import spillable_map as spilling_table
from quorumd.storage.errors import DiskFailed, DiskFull
from quorumd.storage.layout import run_path
from quorumd.storage.sorted_runs import Block, Run, merge, run_of, sorted_parts
from quorumd.storage.spillable_map import ENTRY_BYTES, SpillableMap
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.helpers import DIRECTORY, empty_disk

PATH = run_path(DIRECTORY, 9, 0)
KEYS = st.binary(max_size=3)
VALUES = st.just(b"") | st.binary(min_size=17, max_size=40) | st.integers(90, 300).map(bytes)
CONTENTS = st.dictionaries(KEYS, VALUES, max_size=20)


def no_load(reference: bytes) -> bytes:
    raise AssertionError(f"{reference!r} is not a reference")


def blocks_of(contents: dict[bytes, bytes], size: int) -> Iterator[Block]:
    keys = sorted(contents)
    for at in range(0, len(keys), size):
        some = keys[at : at + size]
        yield Block(some, [contents[key] for key in some])


def table(fs: FaultyFileSystem, memory_bytes: int = 1000) -> SpillableMap:
    return SpillableMap(fs, lambda number: run_path(DIRECTORY, 9, number), memory_bytes)


def put(spilling: SpillableMap, contents: dict[bytes, bytes]) -> int:
    """How often there was a pause."""
    spilling.newest.update(contents)
    size = sum(len(key) + len(value) for key, value in contents.items())
    return len(list(spilling.make_room())) if spilling.added(len(contents), size) else 0


def everything(spilling: SpillableMap, below: Iterator[Block] | None = None) -> list[tuple]:
    found = []
    for some in spilling.merged(below):
        if some is not None:
            assert some.keys == sorted(some.values)
            for key in some.keys:
                value = some.values[key]
                found.append((key, spilling.load(value) if len(value) == 16 else value))
    return found


# Runs


@given(contents=CONTENTS, size=st.integers(1, 5))
def test_a_run_is_read_as_it_was_written(contents: dict[bytes, bytes], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "LARGE_BYTES", 100)
        run = Run(empty_disk(), PATH, 5, 0)
        written = list(blocks_of(contents, size))
        for block in written:
            run.write(block, no_load)
        read = list(run.blocks())
        assert [block.keys for block in read] == [block.keys for block in written]
        for block, again in zip(written, read, strict=True):
            for value, found in zip(block.values, again.values, strict=True):
                if len(value) > 100:
                    assert run_of(found) == 5
                    found = run.load(found)
                assert found == value


@pytest.mark.long
@given(sources=st.lists(CONTENTS, max_size=5), size=st.integers(1, 6))
def test_the_newest_source_wins_a_merge(sources: list[dict[bytes, bytes]], size: int) -> None:
    expected: dict[bytes, bytes] = {}
    for source in sources:
        expected |= source
    found = []
    for keys, values in merge([blocks_of(source, size) for source in sources]):
        assert keys == sorted(values)
        found += [(key, values[key]) for key in keys]
    assert found == sorted(expected.items())


@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 30_000])
def test_keys_are_sorted_in_parts(count: int) -> None:
    draw = Random(count)
    for spread in (10**9, 300):
        keys = [b"%d" % draw.randrange(spread) for _ in range(count)]
        steps = sorted_parts(keys)
        pauses = 0
        while True:
            try:
                next(steps)
                pauses += 1
            except StopIteration as done:
                parts = done.value
                break
        assert [key for part in parts for key in part] == sorted(keys)
        assert pauses >= 2 * (count // 4096)
        if spread == 10**9:
            assert all(len(part) < 3 * 4096 for part in parts)


def test_any_changed_byte_of_a_run_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_runs, "LARGE_BYTES", 100)
    fs = empty_disk()
    run = Run(fs, PATH, 5, 0)
    run.write(Block([b"a", b"b"], [bytes(30), bytes(200)]), no_load)
    for at in range(len(fs.contents(PATH))):
        fs.flip(PATH, at)
        with pytest.raises(DiskFailed, match="not as it was written"):
            _ = [run.load(block.values[1]) for block in run.blocks()]
        fs.flip(PATH, at)
    assert [run.load(block.values[1]) for block in run.blocks()] == [bytes(200)]


def test_a_run_that_got_shorter_is_noticed() -> None:
    fs = empty_disk()
    run = Run(fs, PATH, 5, 0)
    run.write(Block([b"a"], [bytes(30)]), no_load)
    fs.truncate(run._handle, 20)
    with pytest.raises(DiskFailed, match="not as it was written"):
        list(run.blocks())


# The table


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(
    writes=st.lists(CONTENTS, max_size=30),
    below=CONTENTS,
    memory_bytes=st.sampled_from([1, 2_000, 1 << 20]),
)
def test_a_table_is_a_dict_however_much_it_spills(
    writes: list[dict[bytes, bytes]], below: dict[bytes, bytes], memory_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilling_table, "FAN_IN", 3)
        patch.setattr(spilling_table, "BLOCK_BYTES", 100)
        patch.setattr(sorted_runs, "LARGE_BYTES", 100)
        fs = empty_disk()
        spilling = table(fs, memory_bytes)
        expected = dict(below)
        for contents in writes:
            put(spilling, contents)
            expected |= contents
        assert everything(spilling, blocks_of(below, 4)) == sorted(expected.items())
        assert spilling.newest == {}
        spilling.delete()
        spilling.delete()
        assert fs.listdir(DIRECTORY) == []
        assert fs.open_handles == 0


def test_few_runs_are_left_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling_table, "FAN_IN", 4)
    fs = empty_disk()
    spilling = table(fs, 1)
    for number in range(64 + 16 + 3):
        put(spilling, {b"%d" % number: bytes(20)})
    assert [run.level for run in spilling._runs] == [3, 2, 0, 0, 0]
    assert fs.open_handles == 5
    assert len(everything(spilling)) == 83


def test_what_replaces_itself_does_not_spill() -> None:
    fs = empty_disk()
    spilling = table(fs, 100 * (ENTRY_BYTES + 30))
    for number in range(10_000):
        put(spilling, {b"%d" % (number % 40): bytes(20)})
    assert fs.listdir(DIRECTORY) == []
    for number in range(200):
        put(spilling, {b"x%d" % number: bytes(20)})
    assert run_path(DIRECTORY, 9, 0).name in fs.listdir(DIRECTORY)


def test_the_last_of_many_writes_is_in_memory_and_within_the_limit() -> None:
    spilling = table(empty_disk(), 50_000)
    for number in range(2_000):
        put(spilling, {b"%d" % number: bytes(100)})
        assert len(spilling.newest) * (ENTRY_BYTES + 100) <= 50_000
    assert spilling.newest


def test_a_large_value_is_loaded_from_whichever_run_it_is_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spilling_table, "FAN_IN", 2)
    monkeypatch.setattr(sorted_runs, "LARGE_BYTES", 100)
    spilling = table(empty_disk(), 1)
    for number in range(7):
        put(spilling, {b"%d" % number: bytes((number,)) * 200})
    assert dict(everything(spilling)) == {b"%d" % n: bytes((n,)) * 200 for n in range(7)}


def test_the_pauses_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling_table, "BLOCK_BYTES", 1000)
    spilling = table(empty_disk(), 20_000)
    assert put(spilling, {b"%d" % n: bytes(90) for n in range(100)}) >= 10


@pytest.mark.parametrize("call", ["create", "pwritev"])
def test_a_full_disk_is_called_so(call: str) -> None:
    fs = empty_disk()
    spilling = table(fs, 1)
    fs.errors[call] = errno.ENOSPC
    with pytest.raises(DiskFull):
        put(spilling, {b"a": bytes(20)})
    fs.errors.clear()
    spilling.delete()
    assert fs.listdir(DIRECTORY) == []
    assert fs.open_handles == 0


def test_a_run_that_cannot_be_begun_holds_no_file_open() -> None:
    fs = empty_disk()
    fs.errors["truncate"] = errno.EIO
    with pytest.raises(DiskFailed):
        Run(fs, PATH, 0, 0)
    assert fs.open_handles == 0


def test_a_disk_that_cannot_be_read_is_called_so() -> None:
    fs = empty_disk()
    spilling = table(fs, 1)
    put(spilling, {b"a": bytes(20)})
    fs.errors["pread"] = errno.EIO
    with pytest.raises(DiskFailed):
        everything(spilling)
