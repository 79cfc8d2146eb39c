"""Seen from the kernel: what leaves a node, and what was on its disk before (strace)."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from quorumd.wire.codec import decode
from quorumd.wire.errors import MalformedMessage
from quorumd.wire.headers import decode_request_header, decode_response_header
from quorumd.wire.messages.fetch import FetchRequest
from quorumd.wire.messages.produce import ProduceResponse
from quorumd.wire.messages.vote import VoteRequest, VoteResponse
from quorumd.wire.records import iter_headers
from tests.support.live_cluster import TOPIC, Cluster
from tests.support.load import PRODUCE, PRODUCE_VERSION, Load

WRITES = frozenset({"pwrite64", "pwritev", "pwritev2"})
CALLS = "openat,close,pwrite64,pwritev,pwritev2,fsync,fdatasync,rename,renameat,renameat2"
SENDS = frozenset({"write", "sendto", "sendmsg", "writev"})
COUNT_WHEN_BEGUN = SENDS | {"close"}
"""What is sent may have arrived before the call ends, and a closed number be another file's."""
TRACED = f"trace={CALLS},{','.join(sorted(SENDS))}"
FETCH, VOTE = 1, 52


def why_not() -> str:
    if shutil.which("strace") is None:
        return "strace is not installed (apt install strace)"
    done = subprocess.run(["strace", "-D", "true"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"tracing is not allowed: {done.stderr.strip()[-200:]}"


@dataclass(slots=True)
class Call:
    """A system call: when it began if it sends or closes, else when it ended; the bytes or path it names."""

    at_s: float
    name: str
    handle: int
    data: bytes


_LINE = re.compile(r"^(\d+) +(\d+\.\d+) (\w+)\((.*)$")
_RESUMED = re.compile(r"^(\d+) +(\d+\.\d+) <\.\.\. (\w+) resumed>(.*)$")
_UNFINISHED = " <unfinished ...>"
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_END = re.compile(r"\) += (-?\d+|\?).*?(?:<(\d+\.\d+)>)?$")


@functools.cache
def calls(path: Path) -> tuple[Call, ...]:
    return tuple(read_calls(path))


def read_calls(path: Path) -> Iterator[Call]:
    """System calls by one node, those that failed left out."""
    begun: dict[str, str] = {}
    for line in path.read_text(errors="replace").splitlines():
        if resumed := _RESUMED.match(line):
            thread, at, name, rest = resumed.groups()
            text = begun.pop(thread, "") + rest
            if name not in COUNT_WHEN_BEGUN:
                yield from _call(float(at), name, text, is_end=True)
        elif match := _LINE.match(line):
            thread, at, name, text = match.groups()
            if not text.endswith(_UNFINISHED):
                yield from _call(float(at), name, text, is_end=False)
                continue
            begun[thread] = text.removesuffix(_UNFINISHED)
            if name in COUNT_WHEN_BEGUN:
                yield from _call(float(at), name, begun[thread] + ") = 1", is_end=False)


def _call(at_s: float, name: str, text: str, *, is_end: bool) -> Iterator[Call]:
    end = _END.search(text)
    handle = re.match(r"\d+", text)
    if end is None or end.group(1).startswith(("-", "?")):
        return
    data = b"".join(bytes.fromhex(found.replace("\\x", "")) for found in _STRING.findall(text))
    number = int(end.group(1)) if name == "openat" else int(handle.group()) if handle else -1
    if name not in COUNT_WHEN_BEGUN and not is_end:
        at_s += float(end.group(2) or 0)
    yield Call(at_s, name, number, data)


def frames(data: bytes) -> Iterator[bytes]:
    """The whole frames that one send begins with."""
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if size <= 0 or at + 4 + size > len(data):
            return
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


@dataclass(slots=True)
class Disk:
    """What a node has written and synced so far, by its own system calls."""

    files: dict[int, str] = field(default_factory=dict)
    written_end: int = 0
    synced_end: int = 0
    states: list[bytes] = field(default_factory=lambda: [b"", b"", b""])
    """quorum-state.json: as written, as synced, as renamed."""
    durable_votes: set[int] = field(default_factory=set)
    """Their epochs. They stay whatever happens: the directory was synced after the rename."""

    def note(self, call: Call) -> None:
        name = self.files.get(call.handle, "")
        is_state = name.endswith("quorum-state.json.tmp")
        if call.name == "openat":
            self.files[call.handle] = call.data.decode(errors="replace")
        elif call.name == "close":
            self.files.pop(call.handle, None)
        elif call.name in WRITES and name.endswith(".log"):
            is_ahead = not any(call.data[:64])  # zeros, for later
            for _, header in () if is_ahead else iter_headers(call.data):
                self.written_end = max(self.written_end, header.next_offset)
        elif call.name in ("fsync", "fdatasync") and name.endswith(".log"):
            self.synced_end = self.written_end
        elif call.name in WRITES and is_state:
            self.states[0] = call.data
        elif call.name == "fsync" and is_state:
            self.states[1] = self.states[0]
        elif call.name.startswith("rename") and b"quorum-state.json.tmp" in call.data:
            self.states[2] = self.states[1]
        elif call.name == "fsync" and name.endswith("__cluster_metadata-0") and self.states[2]:
            state = json.loads(self.states[2])
            if state["votedId"] > 0:
                self.durable_votes.add(state["leaderEpoch"])


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What each node of a quorum did: two elections, some hundred records, one change of leader."""
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("traced")
    cluster = Cluster(folder / "cluster")
    paths = {node: folder / f"node-{node}.strace" for node in cluster.ids}
    try:
        cluster.format()
        for node, path in paths.items():
            prefix = ["strace", "-D", "-f", "-xx", "-s", "1048576", "-ttt", "-T", "-e", TRACED]
            cluster.start_with(node, prefix=[*prefix, "-o", str(path)])
        cluster.wait_ready(timeout_s=40)
        with Load(cluster) as load:
            load.wait_progress(50)
            cluster.stop(cluster.wait_leader())
            cluster.wait_leader()
            load.wait_progress(50)
    finally:
        cluster.kill_all()
    return paths


def test_a_file_that_opens_under_the_number_of_one_that_closes_is_itself(tmp_path: Path) -> None:
    trace = tmp_path / "strace"
    trace.write_text(
        f'1 1.0 openat(AT_FDCWD, "{_as_traced("closed")}", O_RDONLY) = 7 <0.1>\n'
        "1 2.0 close(7 <unfinished ...>\n"
        f'2 2.1 openat(AT_FDCWD, "{_as_traced("opened")}", O_RDONLY) = 7 <0.1>\n'
        "1 2.2 <... close resumed>) = 0 <0.2>\n"
    )
    disk = Disk()
    for call in calls(trace):
        disk.note(call)
    assert disk.files == {7: "opened"}


def _as_traced(text: str) -> str:
    return "".join(f"\\x{each:02x}" for each in text.encode())


def test_no_vote_is_granted_before_it_is_on_disk(traces: dict[int, Path]) -> None:
    """It is in a file that was synced, renamed, and whose directory was synced after that."""
    asked = {vote for path in traces.values() for call in calls(path) for vote in votes_asked(call)}
    granted = 0
    for node, path in traces.items():
        disk = Disk()
        for call in calls(path):
            disk.note(call)
            for correlation_id, epoch in votes_granted(call):
                if (node, correlation_id, epoch) not in asked:
                    continue  # a pre-vote, which binds nobody
                granted += 1
                # A state of a later epoch may have been saved, too, before this response leaves.
                assert epoch in disk.durable_votes
    assert granted >= 2


def votes_asked(call: Call) -> Iterator[tuple[int, int, int]]:
    """Voter, correlation id and epoch of each Vote request that is no pre-vote."""
    for frame in frames(call.data) if call.name in SENDS else ():
        if frame[:2] != VOTE.to_bytes(2, "big"):
            continue
        try:
            header, at = decode_request_header(frame)
            message = decode(VoteRequest, header.api_version, frame, at)
        except MalformedMessage:
            continue
        partition = message.topics[0].partitions[0]
        if not partition.pre_vote:
            yield message.voter_id, header.correlation_id, partition.replica_epoch


def votes_granted(call: Call) -> Iterator[tuple[int, int]]:
    """Correlation id and epoch of each answer that grants a vote or a pre-vote."""
    for frame in frames(call.data) if call.name in SENDS else ():
        try:
            correlation_id, at = decode_response_header(VOTE, 2, frame)
            answer = decode(VoteResponse, 2, frame, at)
        except MalformedMessage:
            continue
        if len(answer.topics) != 1 or answer.topics[0].topic_name != TOPIC:
            continue
        for partition in answer.topics[0].partitions:
            if partition.vote_granted:
                yield correlation_id, partition.leader_epoch


def test_no_replica_says_that_it_has_what_is_not_on_its_disk(traces: dict[int, Path]) -> None:
    """A Fetch naming offset X leaves only after the sync that covers X."""
    fetches = 0
    for node, path in traces.items():
        disk = Disk()
        for call in calls(path):
            disk.note(call)
            if call.name not in SENDS:
                continue
            for frame in frames(call.data):
                offset = fetched_offset(frame)
                if offset is None:
                    continue
                fetches += 1
                assert offset <= disk.synced_end, (
                    f"node {node} fetches from {offset}, but only {disk.synced_end} is synced"
                )
    assert fetches > 50


def fetched_offset(frame: bytes) -> int | None:
    """The offset of a replica's Fetch, None for any other frame."""
    if frame[:2] != FETCH.to_bytes(2, "big"):
        return None
    try:
        header, at = decode_request_header(frame)
        message = decode(FetchRequest, header.api_version, frame, at)
    except MalformedMessage:
        return None
    if not (header.client_id or "").startswith("raft-client-"):
        return None
    return message.topics[0].partitions[0].fetch_offset


def test_no_produce_is_answered_before_a_majority_of_disks_has_it(traces: dict[int, Path]) -> None:
    """Each success leaves the leader after the syncs of two of the three nodes, by the kernel's clock."""
    answers: list[tuple[float, int]] = []
    synced: dict[int, list[tuple[float, int]]] = {}
    for node, path in traces.items():
        disk = Disk()
        ends = synced[node] = []
        for call in calls(path):
            disk.note(call)
            if not ends or ends[-1][1] < disk.synced_end:
                ends.append((call.at_s, disk.synced_end))
            if call.name in SENDS:
                offsets = (acknowledged_offset(frame) for frame in frames(call.data))
                answers += [(call.at_s, offset) for offset in offsets if offset is not None]
    assert len(answers) >= 100
    for at_s, offset in answers:
        holders = [
            node
            for node, ends in synced.items()
            if any(when <= at_s and end > offset for when, end in ends)
        ]
        assert len(holders) >= 2, f"offset {offset} was acknowledged when {holders} had it"


def acknowledged_offset(frame: bytes) -> int | None:
    """The offset that a successful Produce answer names, None for any other frame."""
    try:
        _, at = decode_response_header(PRODUCE, PRODUCE_VERSION, frame)
        answer = decode(ProduceResponse, PRODUCE_VERSION, frame, at)
    except MalformedMessage:
        return None
    if len(answer.responses) != 1 or answer.responses[0].name != TOPIC:
        return None
    if len(answer.responses[0].partition_responses) != 1:
        return None
    partition = answer.responses[0].partition_responses[0]
    is_success = partition.error_code == 0 and partition.log_append_time_ms == -1
    return partition.base_offset if is_success else None
