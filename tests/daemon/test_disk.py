"""A disk that fills up, hangs, or fails syncs or reads, under one node of a quorum that is written to."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import quorumd
from quorumd import QuorumClient
from quorumd.client.client import LATEST
from quorumd.wire.error_codes import ErrorCode
from tests.clients.librdkafka import LibrdkafkaProducer
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.load import Load, produce, produce_message
from tests.support.mounts import mounted, tmpfs_or_skip
from tests.support.raw_client import RawClient

SMALL_DISK = "24m"
SEGMENTS = {"log.segment.bytes": 4 << 20}
LARGE, SMALL = 20_000, 20
LOST = 'quorumd_elections_total{outcome="lost"}'
FULL_LINE = "the disk is full: nothing is appended until there is space again"
FREE_LINE = "there is space on the disk again"
FETCH_TIMEOUT_S = 2.0
SILENCES = 4
"""So many of them, one after the other, nobody fetches where disks are full."""
FAILED = 1


@contextmanager
def quorum_with_small_disk(
    folder: Path, *, size: int = 3, nodes: Sequence[int] = (1,)
) -> Iterator[Cluster]:
    """A quorum whose first node, or these, have little space."""
    with ExitStack() as mounts:
        for node in nodes:
            small = folder / f"node-{node}"
            small.mkdir(parents=True)
            mounts.enter_context(mounted(small, tmpfs_or_skip(SMALL_DISK)))
        yield mounts.enter_context(running_cluster(folder, size=size, settings=SEGMENTS))


def fill(cluster: Cluster, node: int) -> Path:
    """Take all space that is left on the node's disk."""
    ballast = cluster.storage_dir(node) / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(65536)):
                pass
        except OSError:
            pass
        try:
            while file.write(bytes(512)):
                pass
        except OSError:
            pass
    return ballast


def is_full(cluster: Cluster, node: int) -> bool:
    return any("the disk is full" in problem for problem in cluster.status(node)["problems"])


def write_until_full(cluster: Cluster, load: Load, node: int) -> Path:
    """Take all space and use up what was written ahead. Returns what to delete to free the space."""
    ballast = fill(cluster, node)
    load.value_bytes = LARGE
    cluster.wait_for(lambda: is_full(cluster, node), "a full disk")
    load.value_bytes = SMALL
    return ballast


def test_a_leader_whose_disk_is_full_gives_leadership_away_and_comes_back_by_itself(
    folder: Path,
) -> None:
    with quorum_with_small_disk(folder) as quorum, Load(quorum, value_bytes=SMALL) as load:
        load.wait_progress()
        quorum.lead(1)
        ballast = write_until_full(quorum, load, 1)
        new = quorum.wait_leader(other_than=1)
        load.wait_progress(50)
        quorum.wait_logged(1, FULL_LINE)
        quorum.wait_logged(1, "leadership is given away: the disk is full")
        status = quorum.status(1)
        assert "free space, the node goes on by itself" in " ".join(status["problems"])
        assert not status["ready"]
        assert quorum.status(new)["role"] == "leader"
        ballast.unlink()
        quorum.wait_ready(1)
        quorum.wait_logged(1, FREE_LINE)
        load.wait_progress(50)
        load.stop()
        quorum.assert_same_logs()
        load.assert_nothing_lost(1, 2, 3)


def test_a_leader_whose_disk_is_full_hears_who_leads_now_and_sends_its_producers_there(
    folder: Path,
) -> None:
    with quorum_with_small_disk(folder) as quorum, Load(quorum, value_bytes=SMALL) as load:
        load.wait_progress()
        quorum.lead(1)
        # It knows of the other nodes by node 1 alone, and asks it who leads for as long as it answers.
        servers = f"127.0.0.1:{quorum.port(1)}"
        producer = LibrdkafkaProducer(
            servers, {"message.timeout.ms": 10_000}, idempotent=True, codec=None
        )
        producer.send(b"before")
        ballast = write_until_full(quorum, load, 1)
        quorum.wait_leader(other_than=1)
        for _ in range(100):
            producer.send(b"while it is full")
        failed = [outcome for outcome in producer.finish() if not isinstance(outcome, int)]
        assert not failed, failed[0]
        assert is_full(quorum, 1)
        state = quorum.log_folder(1) / "quorum-state.json"

        def knows_who_leads() -> bool:
            status, leader = quorum.status(1), quorum.wait_leader()
            led = quorum.status(leader)["epoch"]
            stored = json.loads(state.read_text())["leaderEpoch"]
            return (status["leader_id"], status["epoch"], stored) == (leader, led, led)

        quorum.wait_for(knows_who_leads, "the leader, in memory and on the full disk")
        assert is_full(quorum, 1)
        ballast.unlink()
        quorum.wait_ready(1)
        load.stop()
        quorum.assert_same_logs()
        load.assert_nothing_lost(1, 2, 3)


def test_a_follower_whose_disk_is_full_disturbs_nobody_and_comes_back_by_itself(
    folder: Path,
) -> None:
    with quorum_with_small_disk(folder) as quorum, Load(quorum, value_bytes=SMALL) as load:
        load.wait_progress()
        if quorum.wait_leader() == 1:
            quorum.restart(1)
        leader = quorum.wait_leader()
        assert leader != 1
        epoch = quorum.status(leader)["epoch"]
        load.wait_progress()
        failures = load.failures
        ballast = write_until_full(quorum, load, 1)
        load.wait_progress(50)
        quorum.wait_logged(1, FULL_LINE)
        after = quorum.status(leader)
        assert (after["role"], after["epoch"], load.failures) == ("leader", epoch, failures)
        # It keeps in touch, and campaigns for nothing that it could not lead.
        lost = quorum.metric(1, LOST)
        time.sleep(SILENCES * FETCH_TIMEOUT_S)
        assert quorum.status(1)["role"] == "follower"
        assert quorum.metric(1, LOST) == lost
        lines = [line for line in quorum.output(1).splitlines() if " prospective " in line]
        assert len(lines) < 10
        assert not any("does not respond" in it for it in quorum.status(1)["problems"])
        ballast.unlink()
        quorum.wait_ready(1)
        load.stop()
        quorum.assert_same_logs()
        load.assert_nothing_lost(1, 2, 3)
        assert quorum.status(leader)["epoch"] == epoch


def read_all(quorum: Cluster) -> int:
    """How many records a client reads of what is committed."""

    async def read() -> int:
        async with QuorumClient(quorum.bootstrap, timeout_ms=5_000) as client:
            end = (await client.list_offsets(LATEST)).offset
            return sum([len(list(each.records)) async for each in client.read(0, end)])

    return asyncio.run(read())


@pytest.mark.parametrize("nodes", [(1, 2, 3), (2, 3), (1, 2)])
def test_where_too_many_disks_are_full_the_leader_stays_and_what_is_committed_can_be_read(
    folder: Path, nodes: tuple[int, ...]
) -> None:
    with (
        quorum_with_small_disk(folder, nodes=nodes) as quorum,
        Load(quorum, value_bytes=SMALL) as load,
    ):
        load.wait_progress()
        quorum.lead(1)
        load.wait_progress()
        ballasts = [fill(quorum, node) for node in nodes]
        load.value_bytes = LARGE
        quorum.wait_for(lambda: all(is_full(quorum, node) for node in nodes), "full disks")
        load.value_bytes = SMALL
        # The first one that was full may have handed over to others.
        time.sleep(2 * FETCH_TIMEOUT_S)
        leader = quorum.wait_leader()
        epoch = quorum.status(leader)["epoch"]
        time.sleep(SILENCES * FETCH_TIMEOUT_S)
        statuses = [quorum.status(node) for node in (1, 2, 3)]
        assert [(each["leader_id"], each["epoch"]) for each in statuses] == [(leader, epoch)] * 3
        assert read_all(quorum) > 0
        for ballast in ballasts:
            ballast.unlink()
        quorum.wait_ready(1, 2, 3)
        load.wait_progress(50)
        load.stop()
        quorum.assert_same_logs()
        load.assert_nothing_lost(1, 2, 3)


def test_a_lone_node_whose_disk_is_full_refuses_appends_with_56_and_goes_on_later(
    folder: Path,
) -> None:
    with quorum_with_small_disk(folder, size=1) as quorum:
        with Load(quorum, writers=2, value_bytes=SMALL) as load:
            load.wait_progress()
            ballast = write_until_full(quorum, load, 1)
            with RawClient(quorum.port(1)) as client:
                answer = produce(client, produce_message([b"refused"]))
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert answer.error_message is not None
            assert "disk" in answer.error_message
            assert "full" in answer.error_message
            ballast.unlink()
            quorum.wait_ready(1)
            load.wait_progress()
            load.stop()
        load.assert_nothing_lost(1)
        assert not any(record.value == b"refused" for record in quorum.records(1))


def test_a_node_that_is_stopped_or_started_on_a_full_disk_says_so_and_loses_nothing(
    folder: Path,
) -> None:
    with quorum_with_small_disk(folder) as quorum, Load(quorum, value_bytes=SMALL) as load:
        load.wait_progress()
        ballast = write_until_full(quorum, load, 1)
        begun = len(quorum.output(1))
        ended = quorum.stop(1)
        assert ended.exit_code == 0
        assert "Traceback" not in ended.output[begun:], ended.output[begun:]
        load.wait_progress()
        quorum.start(1)
        quorum.wait_for(lambda: quorum.status(1)["pid"], "an answer")
        load.wait_progress()
        ballast.unlink()
        quorum.wait_ready(1)
        load.stop()
        quorum.assert_same_logs()
        load.assert_nothing_lost(1, 2, 3)


# -- directories that are deleted


@pytest.mark.parametrize("loses", ["leader", "follower"])
def test_a_node_whose_directory_is_deleted_ends_and_the_others_go_on(
    folder: Path, loses: str
) -> None:
    """It would acknowledge what is lost with its process, and seem to be well until then."""
    with running_cluster(folder) as quorum, Load(quorum) as load:
        load.wait_progress()
        leader = quorum.wait_leader()
        others = [node for node in quorum.ids if node != leader]
        victim = leader if loses == "leader" else others.pop()
        begun = len(quorum.output(victim))
        shutil.rmtree(quorum.storage_dir(victim))
        ended = quorum.wait_exit(victim)
        text = ended.output[begun:]
        assert ended.exit_code == FAILED
        assert "the file was deleted while this node ran" in text
        assert "as with a lost disk" in text
        assert "Traceback" not in text
        load.wait_progress()
        load.stop()
        load.assert_nothing_lost(*(node for node in quorum.ids if node != victim))


# -- syncs that fail

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

/* fdatasync fails with EIO as long as the file named by FAIL_SYNCS is there, and does not return as long as
   that named by HOLD_SYNCS is. Both kinds of syncs take SLOW_SYNCS ms longer. pread fails so because of
   FAIL_READS. */
static void delay(void) {
    const char *slow = getenv("SLOW_SYNCS");
    if (slow) usleep(atoi(slow) * 1000);
}

int fsync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    delay();
    return real(fd);
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    const char *marker = getenv("FAIL_SYNCS"), *held = getenv("HOLD_SYNCS");
    delay();
    while (held && access(held, F_OK) == 0) usleep(10000);
    if (marker && access(marker, F_OK) == 0) { errno = EIO; return -1; }
    return real(fd);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
    static ssize_t (*real)(int, void *, size_t, off64_t);
    if (!real) real = (ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    const char *marker = getenv("FAIL_READS");
    if (marker && access(marker, F_OK) == 0) { errno = EIO; return -1; }
    return real(fd, data, size, at);
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that makes syncs fail, or hang, on demand."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("shim")
    source, library = folder / "shim.c", folder / "shim.so"
    source.write_text(SHIM)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


@pytest.mark.parametrize("fails", ["leader", "follower"])
def test_a_failed_sync_ends_the_process_at_once_and_nothing_unsynced_was_acknowledged(
    folder: Path, shim: Path, fails: str
) -> None:
    marker = folder.parent / "fail"
    environ = {"LD_PRELOAD": str(shim), "FAIL_SYNCS": str(marker)}
    quorum = Cluster(folder)
    try:
        quorum.format()
        for node in quorum.ids:
            quorum.start_with(node, environ={**environ, "FAIL_SYNCS": f"{marker}-{node}"})
        quorum.wait_ready()
        with Load(quorum) as load:
            load.wait_progress()
            leader = quorum.wait_leader()
            followers = [node for node in quorum.ids if node != leader]
            victim = leader if fails == "leader" else followers[0]
            begun = len(quorum.output(victim))
            Path(f"{marker}-{victim}").touch()
            ended = quorum.wait_exit(victim)
            text = ended.output[begun:]
            assert ended.exit_code == FAILED
            assert "the disk failed" in text
            assert "Input/output error" in text
            assert ".log" in text
            assert "What is on this disk is uncertain" in text
            assert "Traceback" not in text
            load.wait_progress()
            Path(f"{marker}-{victim}").unlink()
            quorum.start(victim)
            quorum.wait_ready()
            load.stop()
        quorum.assert_same_logs()
        load.assert_nothing_lost(*quorum.ids)
    finally:
        quorum.kill_all()


def test_nothing_is_acknowledged_that_only_failed_syncs_would_have_kept(
    folder: Path, shim: Path
) -> None:
    """All three disks fail at once: whatever was answered before is in all logs, nothing else was."""
    marker = folder.parent / "fail"
    quorum = Cluster(folder)
    try:
        quorum.format()
        for node in quorum.ids:
            environ = {"LD_PRELOAD": str(shim), "FAIL_SYNCS": str(marker)}
            quorum.start_with(node, environ=environ)
        quorum.wait_ready()
        with Load(quorum) as load:
            load.wait_progress()
            marker.touch()
            deadline = time.monotonic() + 10
            while len(quorum.running()) > 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            count = len(load.acknowledged)
            load.stop()
            assert len(quorum.running()) <= 1, quorum.logs()
            assert len(load.acknowledged) == count
        quorum.kill_all()
        marker.unlink()
        quorum.start()
        quorum.wait_ready()
        quorum.assert_same_logs()
        load.assert_nothing_lost(*quorum.ids)
    finally:
        quorum.kill_all()


def test_a_leader_that_cannot_read_its_log_ends_and_the_next_one_serves_who_asked(
    folder: Path, shim: Path
) -> None:
    marker = folder.parent / "fail-reads"
    victim = 1
    with running_cluster(folder) as quorum:
        asyncio.run(append(quorum))
        quorum.stop(victim)
        # What is appended before it started is not in its memory.
        quorum.start_with(victim, environ={"LD_PRELOAD": str(shim), "FAIL_READS": str(marker)})
        quorum.wait_ready()
        quorum.lead(victim)
        marker.touch()
        assert asyncio.run(read(quorum)) == b"v"
        ended = quorum.wait_exit(victim)
        assert ended.exit_code == FAILED
        assert "ERROR node  the disk failed" in ended.output
        assert "reading failed: Input/output error" in ended.output
        assert ".log" in ended.output
        assert "Traceback" not in ended.output


async def append(quorum: Cluster) -> None:
    async with QuorumClient(quorum.bootstrap) as client:
        await client.append([quorumd.Record(value=b"v")])


async def read(quorum: Cluster) -> bytes | None:
    """The value of the first record."""
    async with QuorumClient(quorum.bootstrap) as client:
        return next((await client.fetch(0, timeout_ms=20_000)).records).value


# -- syncs that do not return


@pytest.mark.parametrize("hangs", ["leader", "follower"])
def test_a_node_whose_disk_hangs_is_not_ready_and_blames_nobody_else(
    folder: Path, shim: Path, hangs: str
) -> None:
    marker = folder.parent / "hold"
    quorum = Cluster(folder)
    try:
        quorum.format()
        for node in quorum.ids:
            quorum.start_with(
                node, environ={"LD_PRELOAD": str(shim), "HOLD_SYNCS": f"{marker}-{node}"}
            )
        quorum.wait_ready()
        with Load(quorum) as load:
            load.wait_progress()
            leader = quorum.wait_leader()
            follower = next(node for node in quorum.ids if node != leader)
            victim = leader if hangs == "leader" else follower
            hold = Path(f"{marker}-{victim}")
            hold.touch()
            said: set[str] = set()

            def is_named() -> bool:
                said.update(quorum.status(victim)["problems"])
                return any(
                    re.match(r"the disk has not responded for [5-9]\.\d s", text) for text in said
                )

            quorum.wait_for(is_named, "the disk as the problem", timeout_s=20)
            assert all(text.startswith("the disk has not responded") for text in said), said
            if hangs == "follower":
                quorum.wait_logged(victim, "disk_silent_s=")
            assert not quorum.status(victim)["ready"]
            # The other two disks are a majority.
            load.wait_progress(50)
            assert quorum.wait_leader() == leader
            hold.unlink()
            quorum.wait_ready()
            assert quorum.status(victim)["problems"] == []
            load.stop()
        quorum.assert_same_logs()
        load.assert_nothing_lost(*quorum.ids)
    finally:
        quorum.kill_all()


def test_disks_that_take_a_quarter_of_a_second_for_a_sync_elect_a_leader(
    folder: Path, shim: Path
) -> None:
    """A candidate's patience is 1 to 2 s; a vote, and taking office, are two syncs each."""
    quorum = Cluster(folder)
    try:
        quorum.format()
        for node in quorum.ids:
            quorum.start_with(node, environ={"LD_PRELOAD": str(shim), "SLOW_SYNCS": "250"})
        quorum.wait_ready(timeout_s=60)
        asyncio.run(append(quorum))
    finally:
        quorum.kill_all()
