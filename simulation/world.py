"""A whole run: machines, network, clients and faults of one seed, watched by checkers.

First chaos, then all faults stop, and within a bound everything must be well again. The same seed gives
the same events, whatever the hash seed of Python.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from quorumd.raft.invariants import CapturedState as State
from quorumd.raft.roles import Role
from quorumd.raft.types import Endpoint, OffsetAndEpoch, ReplicaKey, Voter
from quorumd.server.admin.initial_voters import render_initial_voters
from quorumd.storage.layout import LOG_SUFFIX
from quorumd.storage.meta_properties import random_storage_id
from quorumd.storage.quorum_state import QuorumState
from quorumd.wire.error_codes import ErrorCode
from simulation.checkers import Checker, Facts, Observation, all_checkers
from simulation.checkers.acknowledged import Acknowledged
from simulation.checkers.acknowledged_changes import check_acknowledged
from simulation.checkers.linearizable import check_linearizable
from simulation.checkers.producers import check_producers
from simulation.checkers.reads import Reads
from simulation.clients.client import Append, Client, Producer, Reader
from simulation.clients.operator import Operator
from simulation.coverage import Coverage
from simulation.faults.faults import FAULTS
from simulation.faults.risk import Risk
from simulation.history.replica import Batch, Replica, batch_of
from simulation.history.voter_change_requests import VoterChangeKind, VoterChangeRequest
from simulation.history.voter_history import NamedVoters
from simulation.machines.address_map import AddressMap
from simulation.machines.machine import FirstVoter, Machine
from simulation.machines.network import Network
from simulation.machines.process import LOG_DIRECTORY, NodeProcess
from simulation.plan import Planned, draw_plan
from simulation.recovery import recover
from simulation.scheduler import SECOND, Scheduler
from simulation.settings import Settings, draw_settings, listener_at
from simulation.stale_disks import DiskCopy, copy_disks, start_from_stale_disk
from simulation.trace import Trace
from simulation.violation import ProcessEnded, Violation

PROBE = 100
"""Number of the producer that begins when the faults have stopped."""
IMPOSSIBLE_REFUSALS = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
    }
)
"""What an idempotent producer that does everything right must never hear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What of a seed is run: all of it, unless said otherwise."""

    faults: Collection[str] | None = None
    """Only these kinds of faults, and these in any case."""
    membership: bool = True
    """Voters come and go in every second run."""
    numbers: Collection[int] | None = None
    """Only these faults of the schedule."""
    steps: int | None = None
    """Stop the chaos after so many events."""


@dataclass(slots=True)
class Outcome:
    """What came of a run that found nothing."""

    digest: str
    steps: int
    simulated_us: int
    committed_records: int
    acknowledged: int
    coverage: Coverage


class World:
    """See the module's docstring."""

    def __init__(self, seed: int, options: Options | None = None) -> None:
        self.seed = seed
        self.options = options or Options()
        self.settings: Settings = draw_settings(seed, self.options.faults, self.options.membership)
        self.scheduler = Scheduler()
        self.coverage = Coverage()
        self.trace = Trace()
        self.network = Network(
            self.scheduler, Random(f"{seed}/network"), self.coverage, self.role_of, self.note
        )
        self.facts = Facts()
        self.checkers: list[Checker] = all_checkers(self.facts)
        self.acknowledged = Acknowledged(self.facts)
        self.reads = Reads(self.facts)
        self.appends: list[Append] = []
        self._looks: dict[ReplicaKey, tuple[NodeProcess, State]] = {}
        self._numbers = 0
        self.begun: list[Planned] = []
        """The faults and operations of the schedule that have begun."""
        self._is_healed = False
        self._copies: dict[str, DiskCopy] = {}
        self.reports: list[str] = []
        self._changes: dict[ReplicaKey, list[NamedVoters]] = {}
        self._seen_changes: set[Batch] = set()
        self.on_next_change: Callable[[Machine], None] | None = None
        self.is_watched = True
        """False once something is done that no quorum survives."""
        self.machines = self._make_machines()
        self._by_host = {machine.host: machine for machine in self.machines}
        self.address_map = AddressMap(self.machines, self.facts)
        self.hosts = [machine.host for machine in self.machines]
        self.risk = Risk(self.facts, auto_join=self.settings.auto_join)
        self.operators: list[Operator] = []
        self.producers = [self._producer(i) for i in range(self.settings.producers)]
        self.readers = [
            Reader(self, f"reader{i}", Random(f"{seed}/reader/{i}"))
            for i in range(self.settings.readers)
        ]

    def _make_machines(self) -> list[Machine]:
        """Formatted, as an operator does it: by configuration, or each with the ids of all disks."""
        settings, seed = self.settings, self.seed
        first = {site: FirstVoter() for site in settings.sites if site.is_first_voter}
        if settings.is_dynamic:
            draw = Random(f"{seed}/first voters").randrange
            ids = {site: random_storage_id(draw) for site in first}
            text = render_initial_voters(
                Voter(ReplicaKey(site.node_id, ids[site]), (Endpoint(*listener_at(site.host)),))
                for site in first
            )
            first = {site: FirstVoter(ids[site], text) for site in first}
        machines = [
            Machine(
                self,
                site.host,
                settings.config_of(site),
                Random(f"{seed}/node/{site.host.removeprefix('node')}"),
                first.get(site),
            )
            for site in settings.sites
        ]
        self.facts.voters.first = tuple(
            machine.replica.key
            for machine, site in zip(machines, settings.sites, strict=True)
            if site.is_first_voter
        )
        return machines

    def _producer(self, number: int) -> Producer:
        return Producer(self, f"producer{number}", Random(f"{self.seed}/producer/{number}"), number)

    def add_probe(self) -> Producer:
        """A producer that begins when the faults have stopped."""
        probe = self._producer(PROBE)
        self.producers.append(probe)
        return probe

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- the run

    def run(self) -> Outcome:
        """Raises Violation."""
        random = Random(f"{self.seed}/start")
        for machine in self.machines:
            self.scheduler.call_later(random.choice([0, random.randrange(SECOND)]), machine.start)
        for planned in draw_plan(self.seed, self.settings, self.options.numbers):
            self.scheduler.call_at(planned.at_us, partial(self._begin, planned))
        clients: list[Client] = [*self.producers, *self.readers]
        for client in clients:
            self.scheduler.call_later(random.randrange(SECOND), client.start)
        self.run_until(self.settings.chaos_us, self.options.steps)
        self._heal()
        recover(self)
        self._check_end()
        start_from_stale_disk(self, self._copies)
        return Outcome(
            self.trace.digest,
            self.scheduler.steps,
            self.scheduler.now_us,
            self.facts.committed_end_offset,
            sum(append.offset is not None for append in self.appends),
            self.coverage,
        )

    def run_until(self, end_us: int, steps: int | None = None) -> None:
        while self.scheduler.step(end_us):
            if steps is not None and self.scheduler.steps >= steps:
                return

    def _begin(self, planned: Planned) -> None:
        if self._is_healed:
            return
        self.begun.append(planned)
        self.note("faults", f"{planned.number}: {planned.name}")
        if planned.name in FAULTS:
            self.facts.is_undisturbed = False
            for operator in self.operators:
                if operator.is_busy:
                    self.coverage.pairs[operator.operation, planned.name] += 1
        planned.act(self, Random(planned.random_seed))

    def begin_operation(
        self, operation: str, requests: Sequence[VoterChangeRequest], random: Random
    ) -> None:
        """An operator begins to ask for these, one after the other."""
        name = f"operator{len(self.operators)}"
        operator = Operator(self, name, random, operation, requests)
        self.operators.append(operator)
        operator.start()

    def later(self, delay_us: int, go_on: Callable[[], None]) -> None:
        """Go on with a fault, unless all have stopped by then."""
        self.scheduler.call_later(delay_us, lambda: None if self._is_healed else go_on())

    def be_calm(self) -> None:
        """Nothing that has happened has any effect any more."""
        self.facts.is_undisturbed = True

    def _heal(self) -> None:
        """All faults stop. Whoever has lost data comes back with an empty disk, as an observer."""
        self._is_healed = True
        self.note("faults", "all stop")
        self.network.heal()
        self.on_next_change = None
        for operator in self.operators:
            operator.is_stopping = True
        for machine in self.machines:
            machine.heal()
        self._copies = copy_disks(self)
        for machine in Random(f"{self.seed}/heal").sample(self.machines, len(self.machines)):
            if machine.is_damaged:
                machine.replace_disk()
            machine.start()

    def _check_end(self) -> None:
        self.acknowledged.on_end(self.appends)
        check_linearizable(self.appends, self.facts.committed)
        for machine in self.machines:
            if machine.process is not None:
                partition = machine.process.partition
                check_producers(machine.replica.key, machine.replica.log, partition.producers)

    # -- who is where

    def process_at(self, host: str) -> NodeProcess | None:
        return self._by_host[host].process

    def add_machine(self, machine: Machine) -> None:
        """A machine that nobody looks for."""
        self._by_host[machine.host] = machine

    def is_voter(self, machine: Machine) -> bool:
        """True if its replica votes by the set that was committed last."""
        return machine.replica.key in self.facts.voters.current

    def host_of(self, node_id: int) -> str | None:
        """The machine of a node; of two with the same id the one that leads."""
        leader = self.leader_machine()
        if leader is not None and leader.id == node_id:
            return leader.host
        return next((m.host for m in self.machines if m.id == node_id), None)

    def leader_machine(self) -> Machine | None:
        """The machine whose process leads the highest epoch, if any."""
        leading = [
            machine
            for machine in self.machines
            if machine.process is not None and machine.process.partition.node.role is Role.LEADER
        ]
        return max(
            leading, key=lambda m: m.process.partition.node.epoch if m.process else -1, default=None
        )

    def victim(self, random: Random) -> Machine:
        """Somebody who runs, the leader more often than others."""
        leader = self.leader_machine()
        is_leader = random.random() < 0.4
        running = [machine for machine in self.machines if machine.process is not None]
        somebody = random.choice(running or self.machines)
        return leader if is_leader and leader is not None else somebody

    def role_of(self, host: str) -> str:
        machine = self._by_host.get(host)
        if machine is None:
            return "client"
        return "down" if machine.process is None else str(machine.process.partition.node.role)

    def note_damaged(self, machine: Machine) -> None:
        machine.is_damaged = True
        self.facts.is_undisturbed = False
        self.facts.excused.add(machine.replica.key)

    # -- what is watched

    def note(
        self, host: str, what: str, kind: str = "", data: bytes = b"", wording: str = ""
    ) -> None:
        self.trace.note(self.scheduler.now_us, host, what, kind, data, wording)

    def count(self, fault: str, machine: Machine) -> None:
        message = "-" if machine.process is None else machine.process.last_message
        self.coverage.count(fault, self.role_of(machine.host), message)

    def count_all(self, fault: str) -> None:
        for machine in self.machines:
            self.count(fault, machine)

    def look(self, process: NodeProcess, *, is_cut_short: bool = False) -> None:
        """Show the checkers a process after an event, or what it got to of one."""
        replica, node = process.replica, process.partition.node
        if replica.disk_updates:
            self.show_disk_updates(replica)
        self._note_report(process)
        if not self.is_watched:
            return
        self._show_snapshots(process)
        now = node.core.snapshot()
        known = self._looks.get(replica.key)
        before = known[1] if known is not None and known[0] is process else None
        if now == before:
            return
        files = process.machine.disk.names(LOG_DIRECTORY) if now.log_start_offset else ()
        clock = process.machine.clock
        look = Observation(replica, node, now, before, files, self.scheduler.now_us, clock.is_true)
        if is_cut_short and now.log_end_offset != replica.end_offset:
            for checker in self.checkers:
                checker.on_cut_short(look)
            return
        self._looks[replica.key] = process, now
        if before is None or before.role != now.role or before.epoch != now.epoch:
            self.note(process.host, f"is {now.role} of epoch {now.epoch}, leader {now.leader}")
        for checker in self.checkers:
            checker.on_event(look)
        for named in self._changes.pop(replica.key, ()):
            change = self.facts.change_of(replica.log, named)
            for checker in self.checkers:
                checker.on_change(look, change)

    def _show_snapshots(self, process: NodeProcess) -> None:
        for snapshot in process.partition.node.core.log.snapshots:
            if snapshot not in process.shown:
                process.shown.add(snapshot)
                data = process.snapshot_bytes(snapshot)
                self.note(
                    process.host, f"has the snapshot {OffsetAndEpoch(*snapshot)!r}", data=data
                )
                for checker in self.checkers:
                    checker.on_snapshot(process.replica, snapshot, data)

    def _note_report(self, process: NodeProcess) -> None:
        report = process.partition.last_report
        if report and report is not process.last_report:
            process.last_report = report
            self.reports.append(report)
            self.note(process.host, "reports", wording=report)

    def show_disk_updates(self, replica: Replica) -> None:
        disk_updates, replica.disk_updates = replica.disk_updates, []
        if not self.is_watched:
            return
        for is_append, batches, before in disk_updates:
            self._note_changes(replica, batches)
            for checker in self.checkers:
                if is_append:
                    checker.on_append(replica, batches, before)
                elif batches:
                    checker.on_truncate(replica, batches)

    def _note_changes(self, replica: Replica, batches: list[Batch]) -> None:
        """Keep the voter sets that this replica makes, for the look that follows."""
        for batch in batches:
            named = self.facts.voters.named.get(batch)
            if named and named.leader == replica.key and batch not in self._seen_changes:
                self._seen_changes.add(batch)
                self._changes.setdefault(replica.key, []).append(named)
                self._strike(replica)

    def _strike(self, leader: Replica) -> None:
        """What a fault has prepared for whoever changes the voters next."""
        fail, self.on_next_change = self.on_next_change, None
        machine = next((m for m in self.machines if m.replica is leader), None)
        if fail is not None and machine is not None:
            # Not in the midst of the event that is looked at.
            self.later(0, partial(fail, machine))

    def note_contact(self, process: NodeProcess, replica: ReplicaKey | None, kind: str) -> None:
        """A request of a replica has arrived."""
        if replica is None or process.partition.node.role is not Role.LEADER:
            return
        if kind in ("Fetch", "FetchSnapshot"):
            self.facts.contacts[replica] = self.scheduler.now_us

    def on_own_request(self, process: NodeProcess, kind: VoterChangeKind, key: ReplicaKey) -> None:
        """A replica asks to vote, or that another one of its id does not any more."""
        requests, node = self.facts.change_requests, process.partition.node
        if not any(
            request.is_own and (request.kind, request.key) == (kind, key) for request in requests
        ):
            requests.append(VoterChangeRequest(kind, key, is_own=True))
        for checker in self.checkers if self.is_watched else ():
            checker.on_own_request(node)

    def on_fulfilled(self, request: VoterChangeRequest, leader_id: int, leader_epoch: int) -> None:
        """An operator is told that it is done, by the leader of this epoch."""
        if not self.is_watched:
            return
        check_acknowledged(self.facts, request)
        if request.kind is VoterChangeKind.TRANSFER and (
            request.key is None or request.key.id != leader_id
        ):
            self._check_handed_over(leader_id, leader_epoch)

    def _check_handed_over(self, leader_id: int, epoch: int) -> None:
        for machine in self.machines:
            node = None if machine.process is None else machine.process.partition.node
            if node is not None and node.role is Role.LEADER and node.epoch == epoch:
                raise Violation(
                    "who has handed over does not lead",
                    f"node {leader_id} has, and {machine.host} leads epoch {epoch}",
                )

    def count_answer(self, operation: str, host: str, error: ErrorCode) -> None:
        """What an operator was told, by whom."""
        self.coverage.count(operation, self.role_of(host), error.name)

    def on_opened(self, process: NodeProcess, state: QuorumState | None) -> None:
        """A process has recovered its log; raises ProcessEnded if it must be kept out."""
        machine, replica = process.machine, process.replica
        if not self.is_watched:
            return
        log = process.partition.log
        found = self.facts.committed_below(log.log_start_offset)
        found += (batch_of(header) for header in log.scan_headers())
        if machine.is_damaged and not _is_whole(
            replica, found, state, process.partition.node.local
        ):
            machine.note("has lost data, and is kept out")
            machine.is_wanted = False
            raise ProcessEnded
        for checker in self.checkers:
            checker.on_recovered(replica, found, state)
        unsynced = [path for path in machine.disk.unsynced_files() if path.suffix == LOG_SUFFIX]
        if unsynced:
            raise Violation(
                "what was synced survives",
                f"{replica.key} counts {unsynced[0]}, and has not synced it",
            )
        replica.recovered(found)
        if state is not None:
            replica.state = state
        self.show_disk_updates(replica)

    def on_vote(self, voter: ReplicaKey, epoch: int, candidate: ReplicaKey) -> None:
        for checker in self.checkers if self.is_watched else ():
            checker.on_vote(voter, epoch, candidate)

    def on_acknowledged(self, append: Append) -> None:
        self.note(append.client, f"is told offset {append.offset}")
        if self.is_watched:
            self.acknowledged.on_acknowledged(append)

    def on_refused(self, append: Append, host: str, error: ErrorCode, message: str | None) -> None:
        """A leader that is deposed and does not know it yet may speak of sequences that it has missed."""
        leader = self.leader_machine()
        is_current = leader is not None and leader.host == host
        if append.is_idempotent and is_current and error in IMPOSSIBLE_REFUSALS:
            raise Violation(
                "an idempotent producer is not refused",
                f"{append.client}, batch {append.identity}: {error.name}, {message}",
            )

    def on_read(self, session: str, offset: int, batches: list[Batch]) -> None:
        if self.is_watched:
            self.reads.on_read(session, offset, batches)


def _is_whole(
    replica: Replica, found: list[Batch], state: QuorumState | None, local: ReplicaKey
) -> bool:
    """True if a damaged directory still holds all that it must."""
    possible: list[QuorumState | None] = [replica.state, *replica.pending_states]
    return (
        local == replica.key
        and found[: len(replica.synced)] == replica.synced
        and (replica.state is None or state in possible)
    )
