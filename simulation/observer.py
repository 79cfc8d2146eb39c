"""Shows every event of every process to the checkers, and keeps what they need of the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quorumd.raft.invariants import CapturedState
from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey, SnapshotId
from quorumd.storage.quorum_state import QuorumState
from simulation.checkers import Checker, Observation, all_checkers
from simulation.checkers.acknowledged import Acknowledged
from simulation.checkers.freshness import Freshness
from simulation.checkers.handed_over import check_handed_over
from simulation.checkers.in_office import InOffice
from simulation.checkers.lookups import Lookup, check_lookup
from simulation.checkers.reads import Reads
from simulation.checkers.sequences import check_sequences
from simulation.history.appends import Append
from simulation.history.facts import Facts
from simulation.history.replica import Batch, Replica
from simulation.history.served import Served
from simulation.history.voter_change_requests import VoterChangeKind, VoterChangeRequest
from simulation.history.voter_history import NamedVoters
from simulation.scheduler import Scheduler
from simulation.trace import Trace


class Observed(Protocol):
    """A process of a node, as far as checkers see it."""

    host: str
    replica: Replica
    last_report: str
    """The report that was observed last."""
    shown_snapshots: set[tuple[int, int]]
    """Snapshots that checkers have seen."""

    @property
    def node(self) -> RaftNode:
        """Its rules."""

    @property
    def report(self) -> str:
        """Text that the node has reported last."""

    @property
    def is_clock_true(self) -> bool:
        """The clock of its machine has never been wrong."""

    @property
    def is_prompt(self) -> bool:
        """Nor was it paused lately."""

    def log_files(self) -> Sequence[str]:
        """Names in the directory of its log."""

    def snapshot_bytes(self, snapshot: SnapshotId) -> bytes:
        """The file of a snapshot."""


class Observer:
    """See the module's docstring."""

    def __init__(self, scheduler: Scheduler, trace: Trace, facts: Facts) -> None:
        self._scheduler = scheduler
        self._trace = trace
        self._facts = facts
        self.checkers: list[Checker] = all_checkers(facts)
        self._acknowledged = Acknowledged(facts)
        self._reads = Reads(facts)
        self._fresh = Freshness(facts)
        self._in_office = InOffice(facts)
        self.is_watching = True
        """False once something is done that no quorum survives."""
        self.reports: list[str] = []
        self.on_voters_appended: Callable[[Replica], None] = lambda leader: None
        """Called with a leader that has just appended a voter set."""
        self._states: dict[ReplicaKey, tuple[Observed, CapturedState]] = {}
        self._changes: dict[ReplicaKey, list[NamedVoters]] = {}
        self._seen_changes: set[Batch] = set()

    # -- processes

    def observe(self, process: Observed, *, is_cut_short: bool = False) -> None:
        """Show the checkers a process after an event, or what it got to of one."""
        replica, node = process.replica, process.node
        if replica.disk_updates:
            self.show_disk_updates(replica)
        self._note_report(process)
        if not self.is_watching:
            return
        self._show_snapshots(process)
        now = node.core.capture()
        known = self._states.get(replica.key)
        before = known[1] if known is not None and known[0] is process else None
        if now == before:
            return
        files = process.log_files() if now.log_start_offset else ()
        now_us, is_clock_true = self._scheduler.now_us, process.is_clock_true
        is_prompt = process.is_prompt
        seen = Observation(replica, node, now, before, files, now_us, is_clock_true, is_prompt)
        if is_cut_short and now.log_end_offset != replica.end_offset:
            for checker in self.checkers:
                checker.on_cut_short(seen)
            return
        self._states[replica.key] = process, now
        if before is None or before.role != now.role or before.epoch != now.epoch:
            role = f"is {now.role} of epoch {now.epoch}, leader {now.leader}"
            self._trace.note(process.host, role)
        for checker in self.checkers:
            checker.on_event(seen)
        for named in self._changes.pop(replica.key, ()):
            change = self._facts.change_of(replica.log, named)
            for checker in self.checkers:
                checker.on_change(seen, change)

    def _show_snapshots(self, process: Observed) -> None:
        for snapshot in process.node.core.log.snapshots:
            if snapshot not in process.shown_snapshots:
                process.shown_snapshots.add(snapshot)
                data = process.snapshot_bytes(snapshot)
                what = f"has the snapshot {snapshot.position!r}"
                self._trace.note(process.host, what, data=data)
                for checker in self.checkers:
                    checker.on_snapshot(process.replica, snapshot, data)

    def _note_report(self, process: Observed) -> None:
        report = process.report
        if report and report is not process.last_report:
            process.last_report = report
            self.reports.append(report)
            self._trace.note(process.host, "reports", wording=report)

    def show_disk_updates(self, replica: Replica) -> None:
        """Show the checkers what a replica has appended or dropped since the last time."""
        disk_updates, replica.disk_updates = replica.disk_updates, []
        if not self.is_watching:
            return
        for is_append, batches, before in disk_updates:
            self._note_changes(replica, batches)
            for checker in self.checkers:
                if is_append:
                    checker.on_append(replica, batches, before)
                elif batches:
                    checker.on_truncate(replica, batches)

    def _note_changes(self, replica: Replica, batches: list[Batch]) -> None:
        """Keep the voter sets that this replica makes, for the observation that follows."""
        for batch in batches:
            named = self._facts.voters.named.get(batch)
            if named and named.leader == replica.key and batch not in self._seen_changes:
                self._seen_changes.add(batch)
                self._changes.setdefault(replica.key, []).append(named)
                self.on_voters_appended(replica)

    def on_recovered(self, replica: Replica, found: list[Batch], state: QuorumState | None) -> None:
        """A new process has opened its directory; `replica` still holds what was known before."""
        for checker in self.checkers:
            checker.on_recovered(replica, found, state)

    # -- messages

    def on_vote(self, voter: ReplicaKey, epoch: int, candidate: ReplicaKey) -> None:
        """A vote leaves a process."""
        for checker in self.checkers if self.is_watching else ():
            checker.on_vote(voter, epoch, candidate)

    def on_contact(self, process: Observed, replica: ReplicaKey | None, kind: str) -> None:
        """A request of a replica has arrived."""
        if replica is None or process.node.role is not Role.LEADER:
            return
        if kind in ("Fetch", "FetchSnapshot"):
            self._facts.contacts[replica] = self._scheduler.now_us
        if self.is_watching:
            is_prompt = process.is_prompt
            self._in_office.on_contact(process.node, replica, self._now_us, is_prompt=is_prompt)

    def on_pre_vote(self, process: Observed, asked_us: int) -> None:
        """A process grants a pre-vote that was asked for at this time."""
        for checker in self.checkers if self.is_watching else ():
            checker.on_pre_vote(process.node, asked_us, is_prompt=process.is_prompt)

    def on_handed_over(self, process: Observed) -> None:
        """A leader says that it has handed over to another voter."""
        if self.is_watching:
            check_handed_over(self._facts, process.node)

    def on_own_request(self, process: Observed, kind: VoterChangeKind, key: ReplicaKey) -> None:
        """A replica asks to vote, or that another one of its id does not any more."""
        requests = self._facts.change_requests
        if not any(known.is_own and (known.kind, known.key) == (kind, key) for known in requests):
            requests.append(VoterChangeRequest(kind, key, is_own=True))
        for checker in self.checkers if self.is_watching else ():
            checker.on_own_request(process.node)

    # -- clients

    def on_acknowledged(self, append: Append, served: Served) -> None:
        """A client gets the offset of its batch."""
        self._trace.note(append.client, f"gets offset {append.offset}")
        if self.is_watching:
            self._acknowledged.on_acknowledged(append)
            assert append.offset is not None, "acknowledged at an offset"
            end_offset = append.offset + append.record_count
            self._fresh.note(end_offset, served.as_leader.epoch, self._now_us)

    def on_served(self, session: str, served: Served, end_offset: int | None) -> None:
        """A client got a response about the log, perhaps with where the log ends."""
        self._trace.note(session, f"gets the end {end_offset}")
        if self.is_watching:
            self._fresh.on_served(session, served, end_offset, self._now_us)

    def on_read(self, session: str, offset: int, batches: list[Batch]) -> None:
        """A reader has asked for an offset and got these batches."""
        if self.is_watching:
            self._reads.on_read(session, offset, batches)

    def on_out_of_range(self, session: str, served: Served, offset: int) -> None:
        """A reader got the response that its offset is outside of the log."""
        if self.is_watching:
            self._fresh.on_out_of_range(session, served, offset)

    def on_looked_up(self, session: str, served: Served, lookup: Lookup, found: int) -> None:
        """A client has asked for an offset by a timestamp or an epoch; -1: there is none."""
        self._trace.note(session, f"gets for {lookup} the offset {found}")
        if self.is_watching:
            check_lookup(self._facts.committed, session, served, lookup, found)

    def on_end(self) -> None:
        """The clients have stopped, and everything that was acknowledged must be there."""
        self._acknowledged.on_end(self._facts.appends)
        check_sequences(self._facts.committed)

    @property
    def _now_us(self) -> int:
        return self._scheduler.now_us
