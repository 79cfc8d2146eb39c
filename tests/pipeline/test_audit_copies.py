"""Copies of what replicas serve, made from logs in memory that are as unruly as those of live nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest

from quorumd.client.connector import Connector
from quorumd.client.errors import ConnectionFailed, NotSupported, RequestRefused
from quorumd.client.reading import RawFetched, raw_batches_from
from quorumd.client.replica_log import ReplicaBounds, ReplicaLog
from quorumd.pipeline.audit import FindingKind, replica_copy
from quorumd.pipeline.audit.collect import audit_copies
from quorumd.pipeline.audit.replica_copy import ReplicaCopy, ReplicaReader
from quorumd.raft.types import Address, ReplicaKey
from quorumd.storage.errors import StorageError
from quorumd.wire.batch_header import iter_headers
from quorumd.wire.error_codes import ErrorCode
from tests.storage.helpers import batch

COUNT = 40
END = COUNT * 10
BATCHES = [batch(10 * i, count=10, epoch=1 + i // 8, value_bytes=200) for i in range(COUNT)]
TIMEOUT_MS = 300


@dataclass
class Served:
    """The log of a node in memory; what happens to it meanwhile is in `before_fetch`, by number of fetch."""

    batches: Sequence[bytes] = tuple(BATCHES)
    start: int = 0
    end: int = END
    epoch: int = 5
    unreadable: int = -1
    """The offset of a batch that its disk does not give any more."""
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    failing: tuple[int, ...] = ()
    fetches: int = 0

    async def cluster_id(self) -> str:
        return "a cluster"

    async def bounds(self) -> ReplicaBounds:
        return ReplicaBounds(self.start, self.end, self.epoch)

    async def fetch(self, offset: int, max_bytes: int) -> RawFetched | None:
        self.start = self.starts.get(self.fetches, self.start)
        self.end = self.ends.get(self.fetches, self.end)
        self.fetches += 1
        if self.fetches in self.failing:
            raise ConnectionFailed("the connection was reset")
        if not self.start <= offset <= self.end:
            return None
        data = b""
        for each in self.batches:
            ((_, header),) = iter_headers(each)
            if header.next_offset <= offset or header.next_offset > self.end:
                continue
            if data and len(data) + len(each) > max_bytes:
                break
            if header.base_offset == self.unreadable:
                raise RequestRefused("read the log", ErrorCode.KAFKA_STORAGE_ERROR)
            data += each
        return raw_batches_from(data, offset)


class Reader(ReplicaReader):
    """Of a log in memory."""

    def __init__(self, served: Served, folder: Path, number: int) -> None:
        self.served = served
        key = ReplicaKey(number, UUID(int=number))
        at = [Address(f"db{number}", 9093)]
        super().__init__(Connector("audit"), key, at, folder, TIMEOUT_MS)

    async def _log_at(self, address: Address) -> ReplicaLog:
        return cast(ReplicaLog, self.served)


def copied(folder: Path, *logs: Served, end: int | None = None) -> list[ReplicaCopy]:
    readers = [Reader(served, folder / str(number), number) for number, served in enumerate(logs)]

    async def run() -> None:
        claimed: dict[Address, ReplicaKey] = {}
        bounds = [await reader.open(claimed) for reader in readers]
        wanted = max(each.end for each in bounds if each is not None) if end is None else end
        await asyncio.gather(*(reader.read(wanted, 5, lambda: None) for reader in readers))

    asyncio.run(run())
    return [reader.copy for reader in readers]


def bytes_of(copy: ReplicaCopy) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(copy.folder.glob("*.log")))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several fetches and segments a log, and little patience."""
    monkeypatch.setattr(replica_copy, "FETCH_BYTES", 4 * len(BATCHES[0]))
    monkeypatch.setattr(replica_copy, "SEGMENT_BYTES", 10 * len(BATCHES[0]))
    monkeypatch.setattr(replica_copy, "LAG_S", 0.05)


def test_a_copy_holds_the_log_in_segments_up_to_what_is_wanted(tmp_path: Path) -> None:
    (copy,) = copied(tmp_path, Served(), end=330)
    assert bytes_of(copy) == b"".join(BATCHES[:33])
    assert len(list(copy.folder.glob("*.log"))) == 3
    assert (copy.start, copy.end, copy.problem) == (0, 330, "")


def test_equal_logs_are_sound_and_all_of_them_counts_as_committed(tmp_path: Path) -> None:
    found = audit_copies(copied(tmp_path, Served(), Served(), Served()))
    assert (found.findings, found.committed, found.batches) == ([], END, 3 * COUNT)


def test_a_replica_that_has_other_records_is_named_with_its_address(tmp_path: Path) -> None:
    other = [*BATCHES[:20], batch(200, count=10, epoch=3, value_bytes=201), *BATCHES[21:]]
    found = audit_copies(copied(tmp_path, Served(), Served(other), Served()))
    (finding,) = found.findings
    assert (finding.kind, finding.offset, finding.end_offset) == (
        FindingKind.DIFFERENT_RECORDS,
        200,
        210,
    )
    assert finding.replicas == ("replica 1 at db1:9093",)
    assert finding.against == ("replica 0 at db0:9093", "replica 2 at db2:9093")
    assert (finding.file, finding.position) == (None, None)


def test_other_records_at_the_very_end_are_damage_because_all_is_committed(tmp_path: Path) -> None:
    last = END - 10
    other = [*BATCHES[:-1], batch(last, count=10, epoch=4, value_bytes=200)]
    found = audit_copies(copied(tmp_path, Served(), Served(other), Served()))
    assert [each.replicas for each in found.findings if each.is_damage] == [
        ("replica 1 at db1:9093",)
    ]


def test_a_batch_that_is_not_sent_is_missing(tmp_path: Path) -> None:
    found = audit_copies(
        copied(tmp_path, Served(), Served([*BATCHES[:20], *BATCHES[21:]]), Served())
    )
    (finding,) = found.findings
    assert (finding.kind, finding.offset, finding.end_offset) == (FindingKind.MISSING, 200, 210)
    assert finding.replicas == ("replica 1 at db1:9093",)


def test_an_epoch_that_no_replica_knows_is_found(tmp_path: Path) -> None:
    strange = [*BATCHES[:-1], batch(END - 10, count=10, epoch=77, value_bytes=200)]
    found = audit_copies(copied(tmp_path, Served(strange), Served(strange)))
    assert {each.kind for each in found.findings} == {FindingKind.UNKNOWN_EPOCH}


def test_logs_that_begin_late_are_compared_where_they_overlap_with_a_note_for_each_start(
    tmp_path: Path,
) -> None:
    logs = [Served(), Served(start=100), Served(start=100), Served(start=250)]
    copies = copied(tmp_path, *logs)
    assert [copy.start for copy in copies] == [0, 100, 100, 250]
    found = audit_copies(copies)
    assert found.is_sound
    assert [(each.kind, each.offset, each.end_offset) for each in found.findings] == [
        (FindingKind.NOT_SERVED, 0, 100),
        (FindingKind.NOT_SERVED, 0, 250),
    ]
    assert found.findings[0].replicas == ("replica 1 at db1:9093", "replica 2 at db2:9093")


# -- what live nodes do


def test_a_log_that_is_cleaned_while_it_is_read_is_read_from_its_new_start(tmp_path: Path) -> None:
    (copy, other) = copied(tmp_path, Served(starts={3: 200}), Served())
    assert (copy.start, copy.end, copy.problem) == (200, END, "")
    assert bytes_of(copy) == b"".join(BATCHES[20:])
    assert audit_copies([copy, other]).is_sound


def test_a_log_whose_start_runs_away_from_the_reader_is_given_up(tmp_path: Path) -> None:
    (copy,) = copied(tmp_path, Served(starts={at: 10 + 50 * at for at in range(8)}), end=1000)
    assert copy.problem == "its history is deleted faster than it can be read"


def test_a_log_that_is_cleaned_beyond_what_is_wanted_is_an_empty_copy(tmp_path: Path) -> None:
    copies = copied(tmp_path, Served(starts={2: 390}), Served(), end=200)
    assert (copies[0].start, copies[0].end, copies[0].problem) == (200, 200, "")
    found = audit_copies(copies)
    assert [each.kind for each in found.findings] == [FindingKind.NOT_SERVED]


def test_a_replica_that_knows_less_is_waited_for(tmp_path: Path) -> None:
    slow = Served(end=100, ends={5: 150, 6: END})
    copies = copied(tmp_path, slow, Served())
    assert [copy.end for copy in copies] == [END, END]
    assert audit_copies(copies).findings == []


def test_a_replica_that_stays_behind_lags_which_is_no_damage(tmp_path: Path) -> None:
    copies = copied(tmp_path, Served(end=100), Served(end=0), Served())
    assert [(copy.end, copy.problem) for copy in copies] == [(100, ""), (0, ""), (END, "")]
    found = audit_copies(copies)
    assert found.is_sound
    assert [(each.kind, each.offset) for each in found.findings] == [
        (FindingKind.LAG, 0),
        (FindingKind.LAG, 100),
    ]


def test_an_offset_that_its_disk_does_not_give_is_named_and_the_rest_audited(
    tmp_path: Path,
) -> None:
    copies = copied(tmp_path, Served(unreadable=220), Served(), Served())
    assert bytes_of(copies[0]) == b"".join(BATCHES[:22])
    (finding,) = audit_copies(copies).findings
    assert (finding.kind, finding.offset, finding.end_offset) == (FindingKind.UNREAD, 220, END)
    assert finding.replicas == ("replica 0 at db0:9093",)
    assert "can't read its own log at offset 220" in finding.what


def test_a_connection_that_breaks_is_made_again(tmp_path: Path) -> None:
    (copy,) = copied(tmp_path, Served(failing=(2, 3, 7)))
    assert (bytes_of(copy), copy.problem) == (b"".join(BATCHES), "")


def test_a_node_that_goes_away_is_unread_from_there_on_and_does_not_lag(tmp_path: Path) -> None:
    copies = copied(tmp_path, Served(failing=tuple(range(3, 1000))), Served())
    assert copies[0].end == 80
    (finding,) = audit_copies(copies).findings
    assert (finding.kind, finding.offset) == (FindingKind.UNREAD, 80)
    assert "from offset 80 on: the connection was reset" in finding.what


@pytest.mark.parametrize("batches", [BATCHES[:10], [*BATCHES[:10], *BATCHES[39:]]])
def test_a_node_that_does_not_send_what_it_says_to_have_is_unread(
    tmp_path: Path, batches: list[bytes]
) -> None:
    (copy,) = copied(tmp_path, Served(batches), end=300)
    assert copy.end == 100
    assert "from offset 100 on" in copy.problem or "where 100 must follow" in copy.problem


def test_a_node_that_shows_no_log_of_its_own_says_why(tmp_path: Path) -> None:
    class Older(Served):
        async def bounds(self) -> ReplicaBounds:
            raise NotSupported("db0:9093 shows its log only while it leads")

    copies = copied(tmp_path, Older(), Served())
    (finding,) = audit_copies(copies).findings
    assert finding.kind is FindingKind.UNREAD
    assert finding.replicas[0].startswith("replica 0 (")
    assert finding.what == "it can't be read: db0:9093 shows its log only while it leads"


def test_no_replica_at_all_is_all_unread(tmp_path: Path) -> None:
    copy = ReplicaCopy(
        ReplicaKey(3, UUID(int=5)), tmp_path / "3", problem="it can't be read: nothing"
    )
    found = audit_copies([copy])
    assert [each.kind for each in found.findings] == [FindingKind.UNREAD]
    assert found.findings[0].replicas == ("replica 3 (AAAAAAAAAAAAAAAAAAAABQ)",)


def test_two_disks_that_claim_one_address_are_not_read_twice(tmp_path: Path) -> None:
    """A majority of one node and itself would prove nothing."""
    readers = [Reader(Served(), tmp_path / str(number), 3) for number in range(2)]
    readers[1].copy.key = ReplicaKey(3, UUID(int=9))

    async def run() -> None:
        claimed: dict[Address, ReplicaKey] = {}
        await asyncio.gather(*(reader.open(claimed) for reader in readers))

    asyncio.run(run())
    assert readers[0].copy.problem == ""
    assert readers[1].copy.address is None
    assert "db3:9093 is that of replica (3, AAAAAAAAAAAAAAAAAAAAAw)" in readers[1].copy.problem


def test_no_room_for_a_copy_says_where_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("in the way")
    with pytest.raises(StorageError, match=r"can't be stored.*TMPDIR"):
        copied(tmp_path, Served())
