"""`QuorumPage`: the paths below which a node shows its quorum in a browser.

    /               the page; everything that it loads is here
    /page.json      what is so now: the page asks for it every second
    /history.json   the last five minutes, a row for each second
    /claims.json    who holds names and who waits for them: for a page that is looked at

Nothing is requested from other nodes or read from disk before a request for the page. Figures of the other
replicas are the leader's; where the leader cannot be asked, the page says so.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable
from importlib.resources import files
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

from quorumd.raft.types import ReplicaKey
from quorumd.server.http.http_server import Page, Pages
from quorumd.server.http.page_turns import PageTurns
from quorumd.server.model.partition_view import PartitionView
from quorumd.server.page.claims import ClaimsReport
from quorumd.server.page.findings import PageFacts, WaitingChange, findings
from quorumd.server.page.history import SAMPLES_MAX, FigureHistory, Sample
from quorumd.server.page.leader import LeaderReport, LeaderView
from quorumd.server.page.replicas import as_key, rows_of, storage_id
from quorumd.server.page.source import PageSource
from quorumd.wire.messages.describe_quorum import DescribeQuorumResponsePartition

SAMPLE_S: Final = 1.0
DISK_AGAIN_S: Final = 5.0
DISK_WAIT_S: Final = 0.2
SAMPLES_WITH_PAGE: Final = 10
"""The newest ones go with each response, so that a page that keeps up needs no history again."""

HEADERS: Final = (
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Resource-Policy: same-origin",
    "Referrer-Policy: no-referrer",
)
_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_JSON: Final = "application/json"


T = TypeVar("T")


class _OnDisk(NamedTuple):
    """None is unknown. The snapshot is the newest; its age is since it was complete."""

    free_bytes: int | None = None
    size_bytes: int | None = None
    snapshot_bytes: int | None = None
    snapshot_age_s: float | None = None


class _Seen(NamedTuple, Generic[T]):
    """Something that is so since a time of the monotonic clock, as far as this node saw it."""

    value: T
    since_s: float


class _VoterSets(NamedTuple):
    """`target` is what a reassignment is on its way to."""

    in_force: tuple[ReplicaKey, ...]
    committed: tuple[ReplicaKey, ...]
    target: tuple[int, ...] | None


class QuorumPage:
    """Call `open` on the running event loop; give `pages` to the HTTP server."""

    def __init__(self, source: PageSource, clock_s: Callable[[], float] = time.monotonic) -> None:
        """`clock_s` never goes back."""
        self._source = source
        self._clock_s = clock_s
        self._history = FigureHistory(source)
        self._leader = LeaderView(source, clock_s)
        self._claims = ClaimsReport(source.storage_dir, clock_s)
        self._run = time.time_ns()
        self._timer: asyncio.TimerHandle | None = None
        self._target = _Seen[tuple[int, ...] | None](None, 0.0)
        self._leadership = _Seen[tuple[int | None, int]]((None, 0), 0.0)
        self._on_disk = _OnDisk()
        self._turns = PageTurns()
        self._reading: asyncio.Future[_OnDisk] | None = None
        self._read_at_s = -DISK_AGAIN_S
        static = files("quorumd.server.page") / "static"
        self._files = {
            path: Page((static / name).read_bytes(), content_type, headers=HEADERS)
            for path, (name, content_type) in _FILES.items()
        }

    @property
    def pages(self) -> Pages:
        """By path."""
        return {
            **{path: self._file_page(page) for path, page in self._files.items()},
            "/page.json": self._now_page,
            "/history.json": self._history_page,
            "/claims.json": self._claims_page,
        }

    def open(self) -> None:
        """Begin to remember."""
        self._tick()

    async def close(self) -> None:
        """Remember no more, and leave no process behind."""
        if self._timer is not None:
            self._timer.cancel()
        await self._claims.close()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_S, self._tick)
        self._history.take(self._clock_s())
        self._watch()

    def _watch(self) -> None:
        """Neither reassignments nor leaderships carry a start time: remember when each was seen first."""
        view, now_s = self._source.view, self._clock_s()
        if view.target_voters != self._target.value:
            self._target = _Seen(view.target_voters, now_s)
        leadership = self._source.leader_id(), view.leader_epoch
        if leadership != self._leadership.value:
            self._leadership = _Seen(leadership, now_s)

    # -- pages

    def _file_page(self, page: Page) -> Callable[[str], Awaitable[Page]]:
        async def respond(accept: str) -> Page:
            del accept
            return page

        return respond

    async def _history_page(self, accept: str) -> Page:
        del accept
        return _json_page(
            {
                "run": str(self._run),
                "sample_s": SAMPLE_S,
                "samples_max": SAMPLES_MAX,
                "fields": Sample._fields,
                "samples": self._history.newest(),
            }
        )

    async def _claims_page(self, accept: str) -> Page:
        del accept
        source = self._source
        if source.claims_withheld:
            return _json_page({"withheld": source.claims_withheld})
        return _json_page(await self._claims.newest(source.view.high_watermark))

    async def _now_page(self, accept: str) -> Page:
        del accept
        return _json_page(await self.now())

    async def now(self) -> dict[str, object]:
        """The content of `/page.json`."""
        report, on_disk = await asyncio.gather(self._leader.report(), self._disk_figures())
        await self._turns.wait()  # all that have waited for the leader go on together
        source, view, partition = self._source, self._source.view, report.partition
        self._watch()
        led_ms = (self._clock_s() - self._leadership.since_s) * 1000
        is_new_leader = led_ms < source.fetch_timeout_ms
        rows = rows_of(source, report, is_new_leader)
        sets = _voter_sets(view, partition)
        facts = PageFacts(
            problems=source.problems(),
            warnings=source.warnings(),
            rows=rows,
            has_report=partition is not None,
            is_report_due=source.leader_id() is not None and not is_new_leader,
            report_problem=report.problem,
            changes=self._changes(report),
            is_settled=sets.in_force == sets.committed,
            epochs_begun=self._history.epochs_begun(),
            snapshot_problem=source.snapshot_problem(),
            disk_free_bytes=on_disk.free_bytes,
            segment_bytes=source.segment_bytes,
            storage_dir=str(source.storage_dir),
        )
        return {
            "run": str(self._run),
            "at_ms": view.wall_ms(),
            "now_s": round(self._clock_s(), 3),
            "status": source.status(),
            "leader_id": source.leader_id(),
            "leader_report": {
                "by": None if partition is None else partition.leader_id,
                "age_s": round(report.age_s, 3),
                "problem": report.problem,
            },
            "findings": [found._asdict() for found in findings(facts)],
            "replicas": [row.as_json() for row in rows],
            "voters": {
                "in_force": _keys(sets.in_force),
                "committed": _keys(sets.committed),
                "target": sets.target,
            },
            "disk": {
                "size_bytes": on_disk.size_bytes,
                "free_bytes": on_disk.free_bytes,
                "log_bytes": source.log_bytes(),
            },
            "snapshot": {
                "size_bytes": on_disk.snapshot_bytes,
                "age_s": on_disk.snapshot_age_s,
            },
            "samples": self._history.newest(SAMPLES_WITH_PAGE),
        }

    def _changes(self, report: LeaderReport) -> list[WaitingChange]:
        """Changes that the leader waits for."""
        if report.partition is None:
            return []
        waiting = []
        for change in report.partition.pending_changes or ():
            key = as_key(change.replica_id, change.replica_directory_id)
            waiting_ms, is_seen = change.waiting_ms, change.waiting_ms < 0
            if is_seen:
                waiting_ms = int((self._clock_s() - self._target.since_s) * 1000)
            replica = None if change.replica_id < 0 else key
            waiting.append(
                WaitingChange(change.kind, replica, waiting_ms, is_seen, change.waits_for)
            )
        return waiting

    async def _disk_figures(self) -> _OnDisk:
        """Not older than DISK_AGAIN_S, unless the disk is slow: the page does not wait for it."""
        now_s = self._clock_s()
        if self._reading is None and now_s >= self._read_at_s + DISK_AGAIN_S:
            self._read_at_s = now_s
            source = self._source
            self._reading = asyncio.ensure_future(
                asyncio.to_thread(
                    _read_disk, source.storage_dir, source.snapshot_path(), source.view.wall_ms()
                )
            )
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=DISK_WAIT_S)
            if self._reading is not None and self._reading.done():
                self._on_disk, self._reading = self._reading.result(), None
        return self._on_disk


def _read_disk(storage_dir: Path, snapshot_path: Path | None, wall_ms: int) -> _OnDisk:
    """Runs on a thread of its own: a disk that hangs must not stop the node."""
    try:
        usage = shutil.disk_usage(storage_dir)
        disk = _OnDisk(usage.free, usage.total)
    except OSError:
        disk = _OnDisk()
    if snapshot_path is None:
        return disk
    try:
        stat = snapshot_path.stat()
    except OSError:
        # A newer one took its place meanwhile, or the disk does not say.
        return disk
    age_s = round(max(0.0, wall_ms / 1000 - stat.st_mtime), 1)
    return disk._replace(snapshot_bytes=stat.st_size, snapshot_age_s=age_s)


def _voter_sets(
    view: PartitionView, partition: DescribeQuorumResponsePartition | None
) -> _VoterSets:
    """As the leader reports them; without a report, as this node knows them."""
    if partition is None:
        return _VoterSets(view.voters.keys, view.committed_voters.keys, view.target_voters)
    in_force = tuple(
        as_key(each.replica_id, each.replica_directory_id) for each in partition.current_voters
    )
    committed = in_force
    if partition.committed_voters is not None:
        committed = tuple(
            as_key(each.replica_id, each.replica_directory_id)
            for each in partition.committed_voters
        )
    return _VoterSets(in_force, committed, partition.target_voters)


def _keys(keys: Iterable[ReplicaKey]) -> list[dict[str, object]]:
    return [{"id": key.id, "storage_id": storage_id(key)} for key in keys]


def _json_page(value: object) -> Page:
    """Raises ValueError for a number that JSON has no text for."""
    body = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    return Page(body, _JSON, headers=HEADERS)
