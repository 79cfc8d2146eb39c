"""`quorumd.storage.verify`: every kind of damage is found and named, and none where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumd.storage.directory import format_directory
from quorumd.storage.epoch_checkpoint import EpochStart, epochs_from, load_epochs, render_epochs
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import (
    EPOCH_CHECKPOINT,
    META_PROPERTIES,
    QUORUM_STATE,
    index_path,
    log_path,
    snapshot_path,
    time_index_path,
)
from quorumd.storage.verify.paths import NothingToVerify
from quorumd.storage.verify.report import FINDINGS_MAX
from quorumd.storage.verify.segment import SegmentFacts, walk_segment
from quorumd.storage.verify.snapshot import SnapshotSeen, walk_snapshot
from quorumd.wire.records import Record, build_batch, iter_headers, read_header, stamp
from tests.server.snapshot_logs import build, with_attributes, with_crc
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.helpers import DIRECTORY, START_MS, append, batch, open_log
from tests.storage.seven_segments import CountingFileSystem
from tests.storage.verified_node import SEGMENT_BYTES, STORAGE, Node
from tests.storage.verifying import Verified, put_real_snapshot, verified


@pytest.fixture
def node() -> Node:
    node = Node()
    assert len(node.bases) > 4
    return node


def only(done: Verified, path: Path, text: str) -> None:
    """One finding, in this file, that says this."""
    assert [finding.path for finding in done.findings] == [path], done.texts
    assert text in str(done.findings[0])


# --- nothing is invented


@pytest.mark.long
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_a_sound_directory_is_sound(seed: int) -> None:
    node = Node(seed)
    done = node.verified()
    assert (done.texts, done.notes) == ([], [])
    facts = done.facts
    assert (facts.start_offset, facts.end_offset) == (0, node.ends[-1])
    assert facts.batches == len(node.batches.data)
    assert facts.records == node.ends[-1]
    assert facts.epochs == load_epochs(node.fs, DIRECTORY)
    assert [snapshot.id.end_offset for snapshot in facts.snapshots] == [
        node.ends[20],
        node.ends[30],
    ]
    for base in node.bases:
        assert node.verified(log_path(DIRECTORY, base)).texts == []
    for path in node.snapshots:
        assert node.verified(path).texts == []


def test_a_log_that_is_being_written_ends_with_its_last_batch(node: Node) -> None:
    log = open_log(node.fs, segment_bytes=1 << 20)
    end = node.ends[-1]
    for offset in range(end, end + 5):
        append(log, batch(offset, epoch=99), offset, offset + 1)
    done = node.verified()
    assert done.texts == []
    assert done.facts.end_offset == end + 5
    assert done.facts.unfinished_bytes > 100_000


@pytest.mark.parametrize("kept", [1, 20, 61, 70])
def test_a_torn_last_batch_is_no_damage(node: Node, kept: int) -> None:
    last = node.segment(-1)
    torn = batch(node.ends[-1], epoch=99)[:kept]
    node.change(last, lambda data: data + torn + bytes(4096))
    done = node.verified()
    assert done.texts == []
    assert (done.facts.end_offset, done.facts.unfinished_bytes) == (node.ends[-1], kept + 4096)


def test_a_log_that_begins_at_its_snapshot_is_sound(node: Node) -> None:
    log = open_log(
        node.fs,
        segment_bytes=SEGMENT_BYTES,
        snapshots=[(node.ends[30], read_header(node.batches.data[29]).epoch)],
    )
    assert log.delete_before(node.ends[30]) > 0
    log.close()
    done = node.verified()
    assert done.texts == []
    assert done.facts.start_offset > 0
    assert node.verified(DIRECTORY).texts == []


def test_a_snapshot_that_its_node_deletes_meanwhile_is_not_missed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    oldest, newest = node.snapshots

    def deleted_before(fs: FaultyFileSystem, path: Path, *rest: Any) -> SnapshotSeen:
        if path == oldest and fs.exists(path):
            fs.remove(path)
        return walk_snapshot(fs, path, *rest)

    monkeypatch.setattr("quorumd.storage.verify.log.walk_snapshot", deleted_before)
    done = verified(fs=node.fs)
    assert done.texts == []
    assert [snapshot_path(DIRECTORY, each.id) for each in done.facts.snapshots] == [newest]


def test_a_snapshot_that_is_a_link_to_nothing_is_damage(tmp_path: Path) -> None:
    log_path(tmp_path, 0).write_bytes(batch(0))
    link = snapshot_path(tmp_path, (1, 1))
    link.symlink_to(tmp_path / "elsewhere")
    only(verified(tmp_path), link, "no snapshot can be read here")


def test_a_directory_that_was_only_formatted_is_sound(tmp_path: Path) -> None:
    format_directory(RealFileSystem(), tmp_path / "s", node_id=1)
    assert verified(tmp_path / "s").texts == []


@pytest.mark.parametrize("segment_bytes", [1 << 20, 100])
def test_what_a_producer_sent_so_is_noted_and_no_damage(node: Node, segment_bytes: int) -> None:
    first = node.ends[-1]
    log = open_log(node.fs, segment_bytes=segment_bytes)
    for offset in (first, first + 1):
        append(log, with_attributes(batch(offset, epoch=99), 4), offset, offset + 1)
    log.close()
    done = node.verified()
    assert done.texts == []
    what = f"compressed batches that do not unpack: 2, the first at offset {first}"
    assert what in str(done.notes)


def test_a_missing_index_is_noted(node: Node) -> None:
    node.fs.remove(index_path(DIRECTORY, node.bases[1]))
    done = node.verified()
    assert done.texts == []
    assert "index files that are missing: 1" in str(done.notes)


def test_epochs_that_the_log_has_not_yet_are_no_damage(node: Node) -> None:
    def longer(data: bytes) -> bytes:
        entries = load_epochs(node.fs, DIRECTORY)
        assert entries
        return render_epochs([*entries, EpochStart(500, node.ends[-1])])

    node.change(DIRECTORY / EPOCH_CHECKPOINT, longer)
    assert node.verified().texts == []


def trimmed(node: Node, snapshot: int) -> list[EpochStart]:
    """The epochs as Kafka writes them when the log start rises to a snapshot's end, segments still there."""
    entries = load_epochs(node.fs, DIRECTORY)
    assert entries
    return epochs_from(entries, node.ends[snapshot])


@pytest.mark.parametrize("snapshot", [20, 30])
def test_epochs_trimmed_before_their_segments_are_no_damage(node: Node, snapshot: int) -> None:
    epochs = trimmed(node, snapshot)
    assert epochs[0].start_offset == node.ends[snapshot] > node.bases[1]
    node.fs.put(DIRECTORY / EPOCH_CHECKPOINT, render_epochs(epochs))
    assert node.verified().texts == []
    assert node.verified(DIRECTORY).texts == []


def test_epochs_trimmed_to_the_end_of_the_log_are_no_damage(node: Node) -> None:
    last = len(node.ends) - 1
    build(node.fs, node.ends[last], complete=True)
    node.fs.put(DIRECTORY / EPOCH_CHECKPOINT, render_epochs(trimmed(node, last)))
    assert node.verified().texts == []


def test_the_snapshot_to_which_epochs_were_trimmed_may_go_meanwhile(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node whose log start rises again deletes it."""
    oldest, _ = node.snapshots
    node.fs.put(DIRECTORY / EPOCH_CHECKPOINT, render_epochs(trimmed(node, 20)))

    def removed_then(fs: FaultyFileSystem, path: Path, *rest: Any, **options: Any) -> SegmentFacts:
        if fs.exists(oldest):
            fs.remove(oldest)
        return walk_segment(fs, path, *rest, **options)

    monkeypatch.setattr("quorumd.storage.verify.log.walk_segment", removed_then)
    assert verified(fs=node.fs).texts == []


def test_a_copied_snapshot_that_waits_for_its_log_is_noted(node: Node) -> None:
    put_real_snapshot(node.fs, node.ends[-1] + 50, 100)
    done = node.verified()
    assert done.texts == []
    assert "begins the log anew" in str(done.notes)


# --- each kind of damage


@pytest.mark.sim
@settings(max_examples=150)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_any_bit_that_flips_in_what_was_synced_is_found(seed: int, data: st.DataObject) -> None:
    """Indexes are hints of which only the entries count; the last segment's may be an unfinished write."""
    node = Node(seed % 20)
    kinds = [*map(node.segment, range(len(node.bases) - 1)), *node.snapshots]
    path = data.draw(st.sampled_from(kinds))
    at = data.draw(st.integers(0, len(node.fs.contents(path)) - 1))
    node.fs.flip(path, at, 1 << data.draw(st.integers(0, 7)))
    done = node.verified()
    assert done.findings, f"{path} at byte {at}"
    assert path in [finding.path for finding in done.findings] or any(
        finding.path.name == EPOCH_CHECKPOINT for finding in done.findings
    )


def test_a_wrong_crc_is_named_with_byte_and_offset_and_the_rest_is_read(node: Node) -> None:
    number = node.with_many()
    position, offset, size = node.second_batch(number)
    node.fs.flip(node.segment(number), position + size - 1)
    done = node.verified()
    only(done, node.segment(number), "the CRC does not match the contents")
    assert (done.findings[0].position, done.findings[0].offset) == (position, offset)
    assert f"a valid batch follows at byte {position + size}" in done.findings[0].what
    assert done.facts.end_offset == node.ends[-1]
    assert done.facts.batches == len(node.batches.data) - 1


def test_each_of_several_damaged_batches_is_named(node: Node) -> None:
    number = node.with_many()
    headers = list(iter_headers(node.fs.contents(node.segment(number))))
    for position, header in (headers[0], headers[2]):
        node.fs.flip(node.segment(number), position + header.size_bytes - 1)
    positions = [finding.position for finding in node.verified().findings]
    assert positions == [headers[0][0], headers[2][0]]


def test_a_lost_sector_in_the_middle_is_damage_also_in_the_last_segment(node: Node) -> None:
    log = open_log(node.fs, segment_bytes=1 << 20)
    end = node.ends[-1]
    for offset in range(end, end + 30):
        append(log, batch(offset, epoch=99, value_bytes=500), offset, offset + 1)
    path = node.segment(-1)
    data = node.fs.contents(path)
    at = 512 * (len(data.rstrip(b"\0")) // 1024)
    node.change(path, lambda data: data[:at] + bytes(512) + data[at + 512 :])
    done = node.verified()
    assert [finding.path for finding in done.findings] == [path]
    assert "was synced" in done.texts[0]


def test_offsets_that_do_not_continue_are_named(node: Node) -> None:
    number = node.with_many()
    position, offset, size = node.second_batch(number)
    path = node.segment(number)
    moved = node.fs.contents(path)[position : position + size]
    moved = stamp(moved, offset + 3, read_header(moved).epoch)
    node.change(path, lambda data: data[:position] + moved + data[position + size :])
    done = node.verified()
    assert f"a batch with offset {offset + 3} where {offset} must follow" in done.texts[0]
    assert {finding.path for finding in done.findings} == {path}


def test_epochs_that_go_back_are_named(node: Node) -> None:
    number = node.with_many()
    position, offset, size = node.second_batch(number)
    path = node.segment(number)
    older = node.fs.contents(path)[position : position + size]
    former = read_header(node.fs.contents(path)).epoch
    older = stamp(older, offset, former - 1)
    node.change(path, lambda data: data[:position] + older + data[position + size :])
    only(node.verified(), path, f"a batch of epoch {former - 1} after one of epoch {former}")


def test_a_log_that_begins_without_an_epoch_is_named(node: Node) -> None:
    path = node.segment(0)
    size = read_header(node.fs.contents(path)).size_bytes
    unstamped = stamp(node.fs.contents(path)[:size], 0, -1)
    node.change(path, lambda data: unstamped + data[size:])
    assert "a batch of epoch -1: no leader has stamped it" in str(node.verified(path).texts)


def test_an_epoch_that_changed_unnoticed_is_found_by_the_checkpoint(node: Node) -> None:
    path = node.segment(len(node.bases) - 2)
    for position, _ in iter_headers(node.fs.contents(path)):
        node.fs.flip(path, position + 12, 0x20)
    done = node.verified()
    assert any(finding.path.name == EPOCH_CHECKPOINT for finding in done.findings) or any(
        "epoch" in text for text in done.texts
    )
    assert done.findings


def test_a_missing_segment_is_a_gap(node: Node) -> None:
    node.fs.remove(node.segment(2))
    done = node.verified()
    what = f"a gap between segments: this one begins at offset {node.bases[3]}"
    assert what in done.texts[0]
    assert done.findings[0].path == node.segment(3)


def test_a_missing_first_segment_is_missed_if_no_snapshot_covers_it(node: Node) -> None:
    for path in node.snapshots:
        node.fs.remove(path)
    node.fs.remove(node.segment(0))
    done = node.verified()
    what = f"the log begins at offset {node.bases[1]}, and no snapshot holds what was before"
    only(done, node.segment(1), what)


def test_a_missing_last_segment_is_missed(node: Node) -> None:
    node.fs.remove(node.segment(-1))
    done = node.verified()
    assert (
        f"the log ends at offset {node.bases[-1]}, but {QUORUM_STATE} says that everything below"
        f" {node.ends[-1]} was committed"
    ) in str(done.texts)


def test_a_segment_under_a_wrong_name_is_named(node: Node) -> None:
    wrong = log_path(DIRECTORY, node.bases[2] + 1)
    node.fs.put(wrong, node.fs.contents(node.segment(2)))
    node.fs.remove(node.segment(2))
    done = node.verified()
    what = f"a batch with offset {node.bases[2]} where {node.bases[2] + 1} is in the name"
    assert what in done.texts[0]


def test_records_that_are_none_behind_a_right_crc_are_named(node: Node) -> None:
    log = open_log(node.fs, segment_bytes=1 << 20)
    data = batch(node.ends[-1], epoch=99)
    append(log, with_crc(data[:-1] + b"\7"), node.ends[-1], node.ends[-1] + 1)
    log.close()
    done = node.verified()
    only(done, node.segment(-1), "Record 0: its header count is negative")
    assert done.findings[0].offset == node.ends[-1]


def test_a_record_count_that_is_not_that_of_the_offsets_is_named(node: Node) -> None:
    log = open_log(node.fs, segment_bytes=1 << 20)
    data = batch(node.ends[-1], epoch=99)
    wrong = with_crc(data[:23] + (4).to_bytes(4, "big") + data[27:])
    append(log, wrong, node.ends[-1], node.ends[-1] + 5)
    log.close()
    only(node.verified(), node.segment(-1), "1 records in 5 offsets")


def test_an_index_entry_that_leads_nowhere_is_named(node: Node) -> None:
    base = next(
        base for base in node.bases[:-1] if len(node.fs.contents(index_path(DIRECTORY, base))) >= 16
    )
    path = index_path(DIRECTORY, base)
    node.fs.flip(path, 15)
    done = node.verified()
    only(done, path, "begins at byte")
    assert done.findings[0].position == 8
    assert "delete this file" in done.findings[0].remedy


def test_a_time_index_that_lies_is_named(node: Node) -> None:
    path = time_index_path(DIRECTORY, node.bases[1])
    node.fs.flip(path, 7)
    only(node.verified(), path, "raised the greatest timestamp")


def test_a_time_index_without_its_last_entry_is_named(node: Node) -> None:
    paths = [time_index_path(DIRECTORY, base) for base in node.bases[:-1]]
    path = max(paths, key=lambda each: len(node.fs.contents(each)))
    node.change(path, lambda data: data[:-12])
    done = node.verified()
    only(done, path, "the last entry is not the greatest timestamp")
    left_bytes = len(node.fs.contents(path))
    assert left_bytes >= 12
    assert done.findings[0].position == left_bytes - 12


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_of_a_broken_length_is_named(node: Node, suffix: str) -> None:
    path = node.segment(1).with_suffix(suffix)
    node.change(path, lambda data: data + b"x")
    only(node.verified(), path, "are no whole entries")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda data: b"nonsense", "unreadable"),
        (lambda data: b"0\n1\n1 0\n", "ends there"),
        (lambda data: data.replace(b"\n1 0\n", b"\n1 1\n"), "it says: epoch 1 begins at offset 1"),
    ],
)
def test_epochs_that_contradict_the_log_are_named(
    node: Node, change: Callable[[bytes], bytes], text: str
) -> None:
    node.change(DIRECTORY / EPOCH_CHECKPOINT, change)
    done = node.verified()
    only(done, DIRECTORY / EPOCH_CHECKPOINT, text)
    assert "delete this file" in done.findings[0].remedy


@pytest.mark.parametrize(("entry", "epochs", "offsets"), [(0, -1, 0), (-1, 0, 1), (-1, 1, 0)])
def test_trimmed_epochs_that_contradict_the_log_are_named(
    node: Node, entry: int, epochs: int, offsets: int
) -> None:
    entries = trimmed(node, 20)
    assert len(entries) > 1
    epoch, start_offset = entries[entry]
    changed = EpochStart(epoch + epochs, start_offset + offsets)
    entries[entry] = changed
    node.fs.put(DIRECTORY / EPOCH_CHECKPOINT, render_epochs(entries))
    said = f"it says: epoch {changed.epoch} begins at offset {changed.start_offset}"
    only(node.verified(), DIRECTORY / EPOCH_CHECKPOINT, said)


def test_epochs_that_begin_above_the_log_start_and_at_no_snapshot_are_named(node: Node) -> None:
    entries = load_epochs(node.fs, DIRECTORY)
    assert entries
    epochs = epochs_from(entries, node.ends[20] + 1)
    node.fs.put(DIRECTORY / EPOCH_CHECKPOINT, render_epochs(epochs))
    only(node.verified(), DIRECTORY / EPOCH_CHECKPOINT, f"begins at offset {node.ends[20] + 1}")


def test_a_snapshot_without_footer_is_named(node: Node) -> None:
    path = node.snapshots[-1]
    node.change(path, lambda data: data[:-80])
    only(node.verified(), path, "not a whole snapshot")


def test_a_snapshot_under_another_name_is_named(node: Node) -> None:
    end_offset = node.ends[30]
    path = snapshot_path(DIRECTORY, (end_offset, 777))
    node.fs.put(path, node.fs.contents(node.snapshots[-1]))
    node.fs.remove(node.snapshots[-1])
    only(node.verified(), path, "in a snapshot of epoch 777")


def test_a_snapshot_that_speaks_of_what_is_beyond_its_end_is_named(node: Node) -> None:
    epoch = read_header(node.batches.data[29]).epoch
    path = snapshot_path(DIRECTORY, (2, epoch))
    node.fs.put(path, node.fs.contents(node.snapshots[-1]))
    texts = [str(f) for f in node.verified(path).findings]
    assert len(texts) == 1
    assert "the name says offset 2" in texts[0]


def test_a_snapshot_of_another_epoch_than_the_log_has_there_is_named(node: Node) -> None:
    end_offset = node.ends[30]
    node.fs.remove(node.snapshots[-1])
    epoch = read_header(node.batches.data[29]).epoch
    put_real_snapshot(node.fs, end_offset, epoch + 1)
    path = snapshot_path(DIRECTORY, (end_offset, epoch + 1))
    what = f"its epoch is {epoch + 1}, but the record before its end, offset {end_offset - 1}, has"
    only(node.verified(), path, what)


def test_a_snapshot_that_ends_with_an_epoch_is_of_that_epoch(node: Node) -> None:
    before, behind = (read_header(node.batches.data[number]) for number in (8, 9))
    assert before.epoch < behind.epoch
    put_real_snapshot(node.fs, behind.base_offset, before.epoch)
    assert node.verified().texts == []


def test_a_damaged_snapshot_covers_nothing(node: Node) -> None:
    for path in node.snapshots[1:]:
        node.fs.remove(path)
    node.fs.flip(node.snapshots[0], 100)
    node.fs.remove(node.segment(0))
    texts = node.verified().texts
    assert any("no sound snapshot holds what was before" in text for text in texts)
    assert any(str(node.snapshots[0]) in text for text in texts)


def test_a_log_that_is_gone_but_for_its_epochs_is_missed(node: Node) -> None:
    for path in node.files():
        if path.suffix in (".log", ".index", ".timeindex", ".checkpoint"):
            node.fs.remove(path)
    assert "there is no segment, but it names epoch" in str(node.verified().texts)


@pytest.mark.parametrize("name", [META_PROPERTIES, f"{DIRECTORY.name}/{QUORUM_STATE}"])
def test_a_small_file_that_is_unreadable_is_named(node: Node, name: str) -> None:
    node.fs.put(STORAGE / name, b"\0\0\0\0")
    only(node.verified(), STORAGE / name, "")


def test_a_state_file_that_is_gone_is_missed(node: Node) -> None:
    node.fs.remove(DIRECTORY / QUORUM_STATE)
    only(node.verified(), DIRECTORY / QUORUM_STATE, "this node has run before")


def test_names_beyond_all_offsets_are_foreign(node: Node) -> None:
    for name in (
        f"{'9' * 20}.log",
        f"{'9' * 20}-{1:010d}.checkpoint",
        f"{7:020d}-{'9' * 10}.checkpoint",
    ):
        node.fs.put(DIRECTORY / name, b"something")
    assert node.verified().texts == []
    log = open_log(node.fs, segment_bytes=SEGMENT_BYTES)
    assert len(log.recovery.foreign_files) == 3


def test_missing_meta_properties_are_named(node: Node) -> None:
    node.fs.remove(STORAGE / META_PROPERTIES)
    only(node.verified(), STORAGE / META_PROPERTIES, "nothing says whose directory this is")


def test_a_meta_properties_without_storage_id_is_left_as_it_is(node: Node) -> None:
    fresh = FaultyFileSystem({STORAGE / META_PROPERTIES: b"version=1\nnode.id=1\n"})
    assert verified(STORAGE, fresh).texts == []
    # A node that has run does not start with it.
    for text in (b"version=1\nnode.id=1\n", b"version=1\nnode.id=1\nstarted=true\n"):
        node.fs.put(STORAGE / META_PROPERTIES, text)
        only(node.verified(), STORAGE / META_PROPERTIES, "storage.id and directory.id are missing")


def test_a_snapshot_of_another_cluster_is_named(node: Node) -> None:
    text = b"version=1\nnode.id=1\ncluster.id=another\nstorage.id=OiscDU5fSmuMfZ6PemtcTQ\n"
    node.fs.put(STORAGE / META_PROPERTIES, text)
    done = node.verified()
    assert {finding.path for finding in done.findings} == set(node.snapshots)
    assert "a snapshot of cluster cluster in a directory of cluster another" in done.texts[0]


def test_a_disk_full_of_damage_does_not_fill_the_memory() -> None:
    node = Node()
    log = open_log(node.fs, segment_bytes=1 << 20)
    end = node.ends[-1]
    for offset in range(end, end + 500):
        append(log, batch(offset, epoch=99), offset, offset + 1)
    log.close()
    log = open_log(node.fs, segment_bytes=1000)
    for offset in range(end + 500, end + 520):
        append(log, batch(offset, epoch=99), offset, offset + 1)
    log.close()
    for number, (position, _) in enumerate(iter_headers(node.fs.contents(node.segment(-1)))):
        if number % 2:
            node.fs.flip(node.segment(-1), position + 70)
    assert len(node.verified().findings) == FINDINGS_MAX


@pytest.mark.long
@pytest.mark.parametrize("is_closed", [True, False])
def test_what_is_read_grows_with_the_bad_places_not_with_their_square(
    is_closed: bool,
) -> None:
    disk = CountingFileSystem()
    for path in (DIRECTORY.parent, DIRECTORY):
        disk.mkdir(path)
    # A batch with a sector of zeros may be one that was never written whole.
    batches = [
        build_batch([Record(i, START_MS, b"key", bytes(8000))], base_offset=i, epoch=1)
        for i in range(401)
    ]
    size = len(batches[0])
    data = bytearray().join(batches)
    for at in range(size, 400 * size, 2 * size):
        data[at + 100] ^= 1
    assert len(data) % 512
    disk.put(log_path(DIRECTORY, 0), bytes(data))
    if is_closed:
        disk.put(log_path(DIRECTORY, 401), batch(401))
    done = verified(fs=disk)
    assert len(done.findings) == FINDINGS_MAX
    assert disk.bytes_read[log_path(DIRECTORY, 0).name] < 2 * 200 * len(data)


# --- what is no log


@pytest.mark.parametrize("name", ["nothing", "file.txt", "folder"])
def test_there_is_nothing_to_verify(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(NothingToVerify) as caught:
        verified(tmp_path / name)
    assert caught.value.exit_code == 2
    assert name in str(caught.value)


def test_json_in_the_state_file_that_is_no_state_is_named(node: Node) -> None:
    node.fs.put(DIRECTORY / QUORUM_STATE, json.dumps({"leaderEpoch": -5}).encode())
    only(node.verified(), DIRECTORY / QUORUM_STATE, "unreadable")
