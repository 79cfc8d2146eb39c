"""A node's directory that is sound, in memory, for tests that spoil it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import UUID

from quorumd.storage.directory import format_directory
from quorumd.storage.layout import log_path, parse_segment_name
from quorumd.storage.quorum_state import QuorumState, save_quorum_state
from quorumd.wire.control_records import LeaderChange
from quorumd.wire.records import iter_headers
from tests.server.snapshot_logs import Batches, build, write_log
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.helpers import DIRECTORY
from tests.storage.verifying import Verified, verified

STORAGE = DIRECTORY.parent
SEGMENT_BYTES = 20_000


def batches_of(seed: int, count: int = 40) -> Batches:
    """A log as quorumd writes it, in several epochs, compressed batches and producers among them."""
    batches = Batches(Random(seed))
    batches.add_control(LeaderChange(leader_id=1))
    for number in range(count):
        if number % 9 == 8:
            batches.epoch += batches.random.randrange(1, 3)
            batches.add_control(LeaderChange(leader_id=1), *batches._state())
        else:
            batches.add_records(batches.random.choice((1, 1, 2, 5, 30)))
    return batches


class Node:
    """A node's directory that is sound, in memory, and what a test does to it."""

    def __init__(self, seed: int = 1) -> None:
        self.fs = fs = FaultyFileSystem()
        fs.mkdir(Path("/data"))
        format_directory(fs, STORAGE, node_id=1, cluster_id="cluster", storage_id=UUID(int=7 << 64))
        self.batches = batches_of(seed)
        write_log(fs, self.batches, segment_bytes=SEGMENT_BYTES)
        self.ends = self.batches.ends
        build(fs, self.ends[20], complete=True)
        build(fs, self.ends[30], complete=True)
        state = QuorumState(cluster_id="cluster", leader_epoch=9, applied_offset=self.ends[-1])
        save_quorum_state(fs, DIRECTORY, state)
        names = (parse_segment_name(name) for name in fs.listdir(DIRECTORY))
        self.bases = sorted(found[0] for found in names if found and found[1] == ".log")
        self.snapshots = [
            DIRECTORY / name for name in fs.listdir(DIRECTORY) if name.endswith(".checkpoint")
        ]

    def verified(self, path: Path = STORAGE) -> Verified:
        before = {each: self.fs.contents(each) for each in self.files()}
        done = verified(path, self.fs)
        assert {each: self.fs.contents(each) for each in self.files()} == before
        return done

    def files(self) -> list[Path]:
        found = [STORAGE / name for name in self.fs.listdir(STORAGE)]
        found += [DIRECTORY / name for name in self.fs.listdir(DIRECTORY)]
        return [path for path in found if path != DIRECTORY]

    def change(self, path: Path, change: Callable[[bytes], bytes]) -> None:
        self.fs.put(path, change(self.fs.contents(path)))

    def segment(self, number: int) -> Path:
        return log_path(DIRECTORY, self.bases[number])

    def second_batch(self, number: int) -> tuple[int, int, int]:
        """(position, offset, size) of the second batch of a segment that has one."""
        headers = list(iter_headers(self.fs.contents(self.segment(number))))
        position, header = headers[1]
        return position, header.base_offset, header.size_bytes

    def with_many(self) -> int:
        """The number of a closed segment with more than two batches."""
        for number in range(1, len(self.bases) - 1):
            if len(list(iter_headers(self.fs.contents(self.segment(number))))) > 3:
                return number
        raise AssertionError("another seed, please")
