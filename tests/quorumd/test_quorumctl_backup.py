"""`quorumctl backup`: what it writes, what it survives, and what it leaves behind when it does not."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quorumd.storage.backup_manifest import load_manifest
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import BACKUP_MANIFEST, snapshot_path
from quorumd.wire.messages.fetch import FetchRequest, FetchResponse
from quorumd.wire.messages.fetch_snapshot import FetchSnapshotRequest
from quorumd.wire.records import Record, build_batch
from quorumd.wire.schema import Message
from tests.quorumd.conftest import Done, QuorumThread
from tests.quorumd.fake_quorum import CLUSTER_ID, FakeQuorum
from tests.quorumd.running import COMMAND, on_a_terminal, started
from tests.quorumd.snapshots import snapshot_bytes
from tests.storage.verifying import verified
from tests.support.mounts import mounted, tmpfs_or_skip

Run = Callable[..., Done]
SMALL_FETCH_BYTES = 2000


def a_batch(number: int, count: int = 3) -> bytes:
    return build_batch([Record(key=b"k", value=b"%d" % number, timestamp=5)] * count)


def fill(quorum: FakeQuorum, count: int = 100, first: int = 0) -> None:
    for number in range(first, first + count):
        quorum.append(a_batch(number))


def cut(quorum: FakeQuorum, batches: int, epoch: int = 1) -> None:
    """The log begins behind its first batches from now on, and a snapshot stands for them."""
    del quorum.log[:batches]
    quorum.log_start_offset = 3 * batches
    data = snapshot_bytes({b"k": (b"v", 0)}, epoch=epoch)
    quorum.snapshots[quorum.log_start_offset, epoch] = data


def with_records(answer: FetchResponse, records: bytes) -> FetchResponse:
    """The same answer, with other bytes."""
    topic = answer.responses[0]
    partition = replace(topic.partitions[0], records=records)
    return replace(answer, responses=(replace(topic, partitions=(partition,)),))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "place"
    folder.mkdir()
    return folder / "backup"


@pytest.fixture
def small_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a log is read in many steps."""
    monkeypatch.setattr("quorumd.cli.backup._FETCH_BYTES", SMALL_FETCH_BYTES)


def check(target: Path, quorum: FakeQuorum, first: int = 0, last: int | None = None) -> None:
    """The backup is sound, and holds these batches of the log byte for byte."""
    done = verified(target)
    assert done.texts == []
    manifest = load_manifest(RealFileSystem(), target)
    data = b"".join((target / file.name).read_bytes() for file in manifest.segments)
    assert data == b"".join(quorum.log[first:last])
    assert os.listdir(target.parent) == [target.name]


def nothing_left(target: Path) -> None:
    assert os.listdir(target.parent) == []


# --- what it writes


def test_the_log_is_copied_byte_for_byte(
    quorum: QuorumThread, quorumctl: Run, target: Path
) -> None:
    quorum.call(fill)
    done = quorumctl("backup", target)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(
        f"backed up offsets 0 to 300 (exclusive) of cluster {CLUSTER_ID} to {target}: 1 segment, "
    )
    check(target, quorum.quorum)
    manifest = load_manifest(RealFileSystem(), target)
    assert (manifest.start_offset, manifest.end_offset, manifest.epoch) == (0, 300, 1)
    assert manifest.begun_at <= manifest.ended_at


def test_json_says_the_same(quorum: QuorumThread, quorumctl: Run, target: Path) -> None:
    quorum.call(fill)
    done = quorumctl("backup", target, "-o", "json")
    assert done.code == 0
    found = json.loads(done.out)
    assert (found["start_offset"], found["end_offset"]) == (0, 300)
    assert found["files"] == [f"{0:020d}.log"]
    assert found["cluster_id"] == CLUSTER_ID


def test_a_log_that_begins_above_0_comes_with_its_snapshot(
    quorum: QuorumThread, quorumctl: Run, target: Path
) -> None:
    quorum.call(fill)
    quorum.call(lambda each: cut(each, 40))
    assert quorumctl("backup", target).code == 0
    check(target, quorum.quorum)
    snapshot = snapshot_path(target, (120, 1))
    assert snapshot.read_bytes() == quorum.quorum.snapshots[120, 1]


def test_a_snapshot_alone_is_a_backup_too(
    quorum: QuorumThread, quorumctl: Run, target: Path
) -> None:
    quorum.call(fill)
    quorum.call(lambda each: cut(each, 100))
    assert quorumctl("backup", target).code == 0
    check(target, quorum.quorum)
    assert sorted(os.listdir(target)) == sorted(
        [BACKUP_MANIFEST, snapshot_path(target, (300, 1)).name]
    )


def test_it_ends_where_the_log_was_committed_when_it_began(
    quorum: QuorumThread, quorumctl: Run, target: Path, small_fetches: None
) -> None:
    """Somebody who writes faster than it reads does not keep it busy for ever."""

    def write(node: int, request: Message, answer: Message) -> Message:
        if isinstance(request, FetchRequest):
            fill(quorum.quorum, 50, first=1000)
        return answer

    quorum.call(fill)
    quorum.quorum.before_answer = write
    assert quorumctl("backup", target).code == 0
    check(target, quorum.quorum, last=100)
    assert quorum.quorum.end_offset > 600


def test_large_logs_are_several_segments(
    quorum: QuorumThread,
    quorumctl: Run,
    target: Path,
    small_fetches: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumd.cli.backup_files.SEGMENT_BYTES", 5000)
    quorum.call(fill)
    assert quorumctl("backup", target).code == 0
    check(target, quorum.quorum)
    manifest = load_manifest(RealFileSystem(), target)
    assert len(manifest.segments) > 1
    assert max(file.size_bytes for file in manifest.segments) <= 5000


def test_an_empty_directory_may_be_there_already(
    quorum: QuorumThread, quorumctl: Run, target: Path
) -> None:
    quorum.call(fill)
    target.mkdir()
    assert quorumctl("backup", target).code == 0
    check(target, quorum.quorum)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_to_a_directory_leads_to_where_the_backup_is(
    quorum: QuorumThread, quorumctl: Run, target: Path, tmp_path: Path, is_there: bool
) -> None:
    quorum.call(fill)
    if is_there:
        target.mkdir()
    link = tmp_path / "link"
    link.symlink_to(target)
    done = quorumctl("backup", link)
    assert (done.code, done.err) == (0, "")
    check(target, quorum.quorum)
    assert link.is_symlink()


# --- what it survives


class Once:
    """Does something at the n-th answer to a request of some kind."""

    def __init__(
        self, quorum: FakeQuorum, kind: type[Message], number: int, action: Callable[[], bool]
    ) -> None:
        """`action` returns False to have the connection closed instead of an answer."""
        self.kind = kind
        self.left = number
        self.action = action
        quorum.before_answer = self

    def __call__(self, node: int, request: Message, answer: Message) -> Message | None:
        if isinstance(request, self.kind):
            self.left -= 1
            if self.left == 0 and not self.action():
                return None
        return answer


def test_it_goes_on_at_the_next_leader(
    quorum: QuorumThread, quorumctl: Run, target: Path, small_fetches: None
) -> None:
    def elect() -> bool:
        quorum.quorum.elect(2)
        return False

    quorum.call(fill)
    once = Once(quorum.quorum, FetchRequest, 4, elect)
    assert quorumctl("backup", target).code == 0
    assert once.left < 0
    check(target, quorum.quorum)


def test_it_goes_on_when_a_snapshot_is_replaced_half_way(
    quorum: QuorumThread, quorumctl: Run, target: Path
) -> None:
    def replace() -> bool:
        quorum.quorum.snapshots.clear()
        cut(quorum.quorum, 20)
        quorum.quorum.log_start_offset = 180
        quorum.quorum.snapshots[180, 1] = quorum.quorum.snapshots.pop((60, 1))
        return False

    quorum.call(fill)
    quorum.call(lambda each: cut(each, 40))
    quorum.quorum.piece_bytes = 100
    Once(quorum.quorum, FetchSnapshotRequest, 2, replace)
    done = quorumctl("backup", target)
    assert done.code == 0, done.err
    check(target, quorum.quorum)
    assert snapshot_path(target, (180, 1)).exists()
    assert not snapshot_path(target, (120, 1)).exists()


def test_it_begins_again_when_the_start_of_the_log_overtakes_it(
    quorum: QuorumThread, quorumctl: Run, target: Path, small_fetches: None
) -> None:
    def forget() -> bool:
        cut(quorum.quorum, 90)
        return False

    quorum.call(fill)
    Once(quorum.quorum, FetchRequest, 4, forget)
    done = quorumctl("backup", target)
    assert done.code == 0, done.err
    check(target, quorum.quorum)
    assert load_manifest(RealFileSystem(), target).start_offset == 270


def test_retention_that_is_always_faster_ends_it(
    quorum: QuorumThread, quorumctl: Run, target: Path, small_fetches: None
) -> None:
    def forget(node: int, request: Message, answer: Message) -> Message:
        is_fetch = isinstance(request, FetchRequest)
        if is_fetch and request.topics[0].partitions[0].last_fetched_epoch < 0:
            each = quorum.quorum
            fill(each, 100)
            del each.log[:100]
            each.log_start_offset += 300
            end_offset = each.log_start_offset + 150
            each.snapshots = {(end_offset, 1): snapshot_bytes({b"k": (b"v", 0)}, epoch=1)}
        return answer

    quorum.call(fill)
    quorum.quorum.before_answer = forget
    done = quorumctl("backup", target, "--timeout", 5)
    assert done.code == 1
    assert "retention has deleted the start of the log" in done.err
    nothing_left(target)


def test_bytes_that_were_damaged_on_the_way_are_asked_for_again(
    quorum: QuorumThread, quorumctl: Run, target: Path, small_fetches: None
) -> None:
    left = [3]

    def damage(node: int, request: Message, answer: Message) -> Message:
        if not isinstance(answer, FetchResponse) or not left[0]:
            return answer
        data = bytearray(answer.responses[0].partitions[0].records or b"")
        if data:
            left[0] -= 1
            data[80] ^= 1
        return with_records(answer, bytes(data))

    quorum.call(fill)
    quorum.quorum.before_answer = damage
    assert quorumctl("backup", target).code == 0
    assert left == [0]
    check(target, quorum.quorum)


def test_a_log_that_does_not_go_on_ends_it(
    quorum: QuorumThread, quorumctl: Run, target: Path, small_fetches: None
) -> None:
    def another() -> bool:
        each = quorum.quorum
        each.log[20:] = each.log[30:]
        return True

    quorum.call(fill)
    Once(quorum.quorum, FetchRequest, 2, another)
    done = quorumctl("backup", target)
    assert done.code == 1
    assert "the log does not go on from offset" in done.err
    nothing_left(target)


def test_a_quorum_that_does_not_come_back_ends_it(
    quorum: QuorumThread, quorumctl: Run, target: Path, small_fetches: None
) -> None:
    def vanish() -> bool:
        quorum.quorum.leader_id = -1
        return False

    quorum.call(fill)
    Once(quorum.quorum, FetchRequest, 4, vanish)
    done = quorumctl("backup", target, "--timeout", 1)
    assert done.code == 1
    assert "could not read the log within 1 s" in done.err
    nothing_left(target)


# --- what it refuses, and what it leaves behind


def test_a_directory_with_something_in_it_is_refused(
    quorum: QuorumThread, quorumctl: Run, target: Path
) -> None:
    target.mkdir()
    (target / "letter").write_text("Dear Sir")
    done = quorumctl("backup", target)
    assert done.code == 2
    assert f"{target}: the directory is not empty" in done.err
    assert quorum.quorum.requests == []
    assert os.listdir(target) == ["letter"]


def test_a_file_and_a_missing_parent_are_refused(
    quorum: QuorumThread, quorumctl: Run, target: Path
) -> None:
    target.write_text("Dear Sir")
    assert "a file is in the way" in quorumctl("backup", target).err
    done = quorumctl("backup", target.parent / "none" / "backup")
    assert done.code == 2
    assert "there is no such directory. Make it first" in done.err


def test_a_second_backup_never_touches_the_first(
    quorum: QuorumThread, quorumctl: Run, target: Path
) -> None:
    quorum.call(fill)
    assert quorumctl("backup", target).code == 0
    assert quorumctl("backup", target).code == 2
    check(target, quorum.quorum)


def test_what_a_killed_one_has_left_is_taken_over(
    quorum: QuorumThread, quorumctl: Run, target: Path
) -> None:
    left = target.with_name(f".{target.name}.part")
    left.mkdir()
    (left / f"{0:020d}.log").write_bytes(b"half")
    quorum.call(fill)
    assert quorumctl("backup", target).code == 0
    check(target, quorum.quorum)


def test_two_backups_to_one_place_do_not_meet(
    quorum: QuorumThread, quorumctl: Run, target: Path
) -> None:
    left = target.with_name(f".{target.name}.part")
    left.mkdir()
    lock = os.open(left, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    quorum.call(fill)
    done = quorumctl("backup", target)
    os.close(lock)
    assert done.code == 2
    assert "another backup is being written there" in done.err


def test_an_empty_quorum_has_nothing_to_back_up(
    quorum: QuorumThread, quorumctl: Run, target: Path
) -> None:
    done = quorumctl("backup", target)
    assert done.code == 1
    assert "nothing is committed yet" in done.err
    nothing_left(target)


def test_ctrl_c_leaves_nothing_behind(quorum: QuorumThread, target: Path) -> None:
    processes: list[subprocess.Popen[bytes]] = []

    def interrupt() -> bool:
        processes[0].send_signal(signal.SIGINT)
        return True

    def large(each: FakeQuorum) -> None:
        for _ in range(40):
            each.append(build_batch([Record(value=bytes(1_000_000))]))

    quorum.call(large)
    Once(quorum.quorum, FetchRequest, 3, interrupt)
    with started("backup", str(target)) as process:
        processes.append(process)
        assert process.wait(20) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    nothing_left(target)


@pytest.mark.live
def test_a_full_disk_is_said_and_leaves_nothing_behind(
    quorum: QuorumThread, quorumctl: Run, tmp_path: Path
) -> None:
    def large(each: FakeQuorum) -> None:
        for _ in range(12):
            each.append(build_batch([Record(value=bytes(1_000_000))]))

    quorum.call(large)
    folder = tmp_path / "small"
    folder.mkdir()
    with mounted(folder, tmpfs_or_skip("8m")):
        done = quorumctl("backup", folder / "backup")
        assert done.code == 1
        assert "No space left on device" in done.err
        assert "Nothing of it is left" in done.err
        assert os.listdir(folder) == []


def test_a_file_that_may_not_grow_is_said(quorum: QuorumThread, target: Path) -> None:
    """In a process of its own, with a limit on the size of files."""

    def large(each: FakeQuorum) -> None:
        for _ in range(12):
            each.append(build_batch([Record(value=bytes(1_000_000))]))
        each.snapshots[3, 1] = snapshot_bytes({b"k": (bytes(3_000_000), 0)}, epoch=1)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    quorum.call(large)
    done = subprocess.run(
        [str(COMMAND), "backup", str(target)],
        capture_output=True,
        timeout=60,
        check=False,
        preexec_fn=limit,
    )
    assert done.returncode == 1
    assert os.strerror(errno.EFBIG).encode() in done.stderr
    nothing_left(target)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_without_permission_is_said(
    quorum: QuorumThread, quorumctl: Run, target: Path
) -> None:
    target.parent.chmod(0o500)
    done = quorumctl("backup", target)
    target.parent.chmod(0o700)
    assert done.code == 1
    assert "Permission denied" in done.err


def test_a_backup_that_takes_long_shows_a_bar(quorum: QuorumThread, target: Path) -> None:
    quorum.call(fill)
    contents = {b"%05d" % number: (b"v" * 50, 0) for number in range(2000)}
    quorum.quorum.snapshots[3, 1] = snapshot_bytes(contents, records_per_batch=100)
    # Slow enough: a piece takes a round trip.
    quorum.quorum.piece_bytes = 20
    code, shown = on_a_terminal("backup", str(target))
    assert code == 0
    assert "loading the snapshot" in shown
    assert "backed up offsets 0 to 300" in shown
    check(target, quorum.quorum)


def test_a_snapshot_that_leaves_one_offset_out_is_not_enough(
    quorum: QuorumThread, quorumctl: Run, target: Path
) -> None:
    def fill_and_forget(fake: FakeQuorum) -> None:
        fill(fake)
        cut(fake, 90)
        data = fake.snapshots.pop((270, 1))
        fake.snapshots[269, 1] = data

    quorum.call(fill_and_forget)
    done = quorumctl("backup", target)
    assert done.code == 1
    assert "retention has deleted the start of the log" in done.err
    nothing_left(target)


def test_addresses_that_lead_to_two_quorums_make_no_backup(
    quorum: QuorumThread, quorumctl: Run, target: Path
) -> None:
    def change(node: int, request: Message, answer: Message) -> Message:
        if isinstance(answer, FetchResponse):
            quorum.quorum.cluster_id = "another"
        return answer

    quorum.call(fill)
    quorum.quorum.before_answer = change
    done = quorumctl("backup", target)
    assert done.code == 1
    assert f"the addresses lead to two quorums, {CLUSTER_ID} and another one" in done.err
    nothing_left(target)


def test_records_that_are_said_to_be_there_and_never_come_end_it(
    quorum: QuorumThread, quorumctl: Run, target: Path
) -> None:
    def withhold(node: int, request: Message, answer: Message) -> Message:
        if isinstance(request, FetchRequest) and isinstance(answer, FetchResponse):
            is_first = not request.topics[0].partitions[0].fetch_offset
            return with_records(answer, b"".join(quorum.quorum.log[:10]) if is_first else b"")
        return answer

    quorum.call(fill)
    quorum.quorum.before_answer = withhold
    done = quorumctl("backup", target, "--timeout", 0.5)
    assert done.code == 1
    assert "offset 299 was not reached within 0.5 s: everything below 30 is here" in done.err
    nothing_left(target)
