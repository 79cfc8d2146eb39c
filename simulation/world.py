"""A whole run: machines, network, clients and faults of one seed, watched by checkers.

First chaos, then all faults stop, and within a bound everything must be well again. The same seed gives
the same events, whatever the hash seed of Python.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import NamedTuple

from raft.invariants import Snapshot as State
from raft.leadership import went_back
from raft.roles import Role
from raft.types import ReplicaKey
from simulation.checkers import Checker, Facts, Look, all_checkers
from simulation.checkers.acknowledged import Acknowledged
from simulation.checkers.linearizable import check_linearizable
from simulation.checkers.producers import check_producers
from simulation.checkers.reads import Reads
from simulation.clients import Append, Client, Producer, Reader
from simulation.coverage import Coverage
from simulation.disk import Snapshot
from simulation.life import Life
from simulation.machine import Machine
from simulation.network import Network
from simulation.plan import Planned, draw_plan
from simulation.replica import Batch, Replica, batch_of
from simulation.scheduler import MS, SECOND, Scheduler
from simulation.settings import Settings, draw_settings
from simulation.trace import Trace
from simulation.violation import ProcessEnded, Violation
from storage.layout import LOG_SUFFIX
from storage.quorum_state import QuorumState
from storage.snapshot_file import SnapshotId
from wire.error_codes import ErrorCode

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


class Copy(NamedTuple):
    """The files of a machine at some moment, and where the log of this replica ended then."""

    key: ReplicaKey
    end_offset: int
    files: Snapshot


class World:
    """See the module's docstring."""

    def __init__(self, seed: int, options: Options | None = None) -> None:
        self.seed = seed
        self.options = options or Options()
        self.settings: Settings = draw_settings(seed, self.options.faults)
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
        self.damaged_voters: set[int] = set()
        self._looks: dict[ReplicaKey, tuple[Life, State]] = {}
        self._numbers = 0
        self.begun: list[Planned] = []
        """The faults of the schedule that have begun."""
        self._is_healed = False
        self._copies: dict[str, Copy] = {}
        self._reports: list[str] = []
        self.is_watched = True
        """False once something is done that no quorum survives."""
        self.machines = [
            Machine(
                self,
                node_id,
                self.settings.config_of(node_id),
                Random(f"{seed}/node/{node_id}"),
                is_voter=node_id <= self.settings.voters,
            )
            for node_id in self.settings.node_ids
        ]
        self._by_host = {machine.host: machine for machine in self.machines}
        self.producers = [self._producer(i) for i in range(self.settings.producers)]
        self.readers = [
            Reader(self, f"reader{i}", Random(f"{seed}/reader/{i}"))
            for i in range(self.settings.readers)
        ]

    def _producer(self, number: int) -> Producer:
        return Producer(self, f"producer{number}", Random(f"{self.seed}/producer/{number}"), number)

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
        self._run_until(self.settings.chaos_us, self.options.steps)
        self._heal()
        self._recover()
        self._check_end()
        self._show_an_old_copy()
        return Outcome(
            self.trace.digest,
            self.scheduler.steps,
            self.scheduler.now_us,
            self.facts.committed_end_offset,
            sum(append.offset is not None for append in self.appends),
            self.coverage,
        )

    def _run_until(self, end_us: int, steps: int | None = None) -> None:
        while self.scheduler.step(end_us):
            if steps is not None and self.scheduler.steps >= steps:
                return

    def _begin(self, planned: Planned) -> None:
        if self._is_healed:
            return
        self.begun.append(planned)
        self.note("faults", f"{planned.number}: {planned.name}")
        planned.act(self, Random(planned.random_seed))

    def _heal(self) -> None:
        """All faults stop. Whoever has lost data comes back with an empty disk, as an observer."""
        self._is_healed = True
        self.note("faults", "all stop")
        self.network.heal()
        for machine in self.machines:
            machine.heal()
            self._copies[machine.host] = Copy(
                machine.replica.key, machine.replica.synced_end_offset, machine.disk.snapshot()
            )
        for machine in Random(f"{self.seed}/heal").sample(self.machines, len(self.machines)):
            if machine.is_damaged:
                machine.replace_disk()
            machine.start()

    def _recover(self) -> None:
        """Within the bound a leader is there, appends commit, and all logs are the same."""
        settings = self.settings
        timeouts_ms = (
            settings.fetch_timeout_ms
            + 2 * settings.election_timeout_ms
            + settings.request_timeout_ms
        )
        begin_us = self.scheduler.now_us
        bound_us = begin_us + 15 * SECOND + 6 * timeouts_ms * MS
        probe = self._producer(PROBE)
        self.producers.append(probe)
        probe.start()
        self._run_until(begin_us + SECOND)
        while not any(append.client == probe.name for append in self.appends):
            self._run_until(self.scheduler.now_us + 50 * MS)
        for client in (*self.producers, *self.readers):
            client.is_stopping = True
        while not self._is_well():
            if self.scheduler.now_us >= bound_us:
                raise Violation("liveness", self._what_is_not_well((bound_us - begin_us) / SECOND))
            self._run_until(self.scheduler.now_us + 20 * MS)

    def _is_well(self) -> bool:
        leader = self.leader_machine()
        if leader is None or leader.life is None:
            return False
        if any(a.is_idempotent and a.offset is None for a in self.appends):
            return False
        node = leader.life.partition.node
        end_offset = node.log.end_offset
        return node.high_watermark == end_offset and all(
            machine.life is not None
            and machine.life.partition.node.high_watermark == end_offset
            and machine.replica.log == leader.replica.log
            for machine in self.machines
        )

    def _what_is_not_well(self, seconds: float) -> str:
        rows = []
        for machine in self.machines:
            if machine.life is None:
                rows.append(f"{machine.host} is down")
                continue
            node = machine.life.partition.node
            rows.append(
                f"{machine.replica.key}: {node.role} of epoch {node.epoch}, leader {node.leader},"
                f" log end {node.log.end_offset}, high watermark {node.high_watermark},"
                f" voters {', '.join(map(str, node.voters.keys))};"
                f" {'; '.join(machine.life.partition.problems()) or 'no problem'}"
            )
        waiting = [a.client for a in self.appends if a.is_idempotent and a.offset is None]
        return (
            f"not well {seconds:.0f} s after all faults have stopped; waiting: {waiting}\n    "
            + "\n    ".join(rows)
        )

    def _check_end(self) -> None:
        self.acknowledged.on_end(self.appends)
        check_linearizable(self.appends, self.facts.committed)
        for machine in self.machines:
            if machine.life is not None:
                partition = machine.life.partition
                check_producers(machine.replica.key, machine.replica.log, partition.producers)

    def _show_an_old_copy(self) -> None:
        """Last of all, in some seeds: an older copy of a directory must be noticed.

        Either it replaces the directory, or it is started elsewhere while the node runs on. No
        quorum can be safe from that, so nothing else is checked any more.
        """
        random = Random(f"{self.seed}/copy")
        kind = random.choice(["none", "none", "rollback", "clone"])
        leader = self.leader_machine()
        others = [machine for machine in self.machines if machine is not leader]
        if kind == "none" or not others or leader is None:
            return
        victim = random.choice(others)
        copy = self._copies[victim.host]
        # What was synced a moment ago, and not acknowledged yet, nobody can miss.
        acknowledged = _acknowledged(leader, victim.replica.key)
        if copy.end_offset >= acknowledged or copy.key != victim.replica.key:
            return
        self.is_watched = False
        self.count(kind, victim)
        victim.is_damaged = True
        machine = victim
        if kind == "rollback":
            victim.is_wanted = False
            victim.end_life("its directory is rolled back")
        else:
            settings = self.settings.config_of(victim.id)
            machine = Machine(self, victim.id, settings, random, is_voter=True, host="clone")
            machine.replica = Replica(victim.replica.key, self.facts.committed_below)
            machine.is_damaged = True
            self._by_host[machine.host] = machine
        machine.disk.restore(copy.files)
        machine.start()
        end_us = self.scheduler.now_us + 10 * SECOND
        while not self._is_noticed(victim.replica.key, machine):
            if self.scheduler.now_us >= end_us:
                raise Violation(
                    "an old copy of a directory is noticed",
                    f"{kind} of {victim.replica.key} from {acknowledged} to"
                    f" {copy.end_offset}: nobody has said so within 10 s",
                )
            self._run_until(self.scheduler.now_us + 20 * MS)

    def _is_noticed(self, key: ReplicaKey, machine: Machine) -> bool:
        """True if it refused to start, or somebody reports that it went back."""
        report = went_back(key, 0, 0).partition(" from offset ")[0]
        return machine.life is None or any(report in said for said in self._reports)

    # -- who is where

    def life_at(self, host: str) -> Life | None:
        return self._by_host[host].life

    def leader_machine(self) -> Machine | None:
        """The machine whose process leads the highest epoch, if any."""
        leading = [
            machine
            for machine in self.machines
            if machine.life is not None and machine.life.partition.node.role is Role.LEADER
        ]
        return max(
            leading, key=lambda m: m.life.partition.node.epoch if m.life else -1, default=None
        )

    def victim(self, random: Random) -> Machine:
        """Somebody who runs, the leader more often than others."""
        leader = self.leader_machine()
        is_leader = random.random() < 0.4
        running = [machine for machine in self.machines if machine.life is not None]
        somebody = random.choice(running or self.machines)
        return leader if is_leader and leader is not None else somebody

    def role_of(self, host: str) -> str:
        machine = self._by_host.get(host)
        if machine is None:
            return "client"
        return "down" if machine.life is None else str(machine.life.partition.node.role)

    def may_damage(self, machine: Machine) -> bool:
        """True if what it has on disk may be harmed: a minority of the voters at most ever is."""
        if not machine.is_voter or machine.id in self.damaged_voters:
            return True
        return len(self.damaged_voters) < (self.settings.voters - 1) // 2

    def note_damaged(self, machine: Machine) -> None:
        machine.is_damaged = True
        self.facts.excused.add(machine.replica.key)
        if machine.is_voter:
            self.damaged_voters.add(machine.id)

    # -- what is watched

    def note(self, host: str, what: str, kind: str = "", data: bytes = b"") -> None:
        self.trace.note(self.scheduler.now_us, host, what, kind, data)

    def count(self, fault: str, machine: Machine) -> None:
        message = "-" if machine.life is None else machine.life.last_message
        self.coverage.count(fault, self.role_of(machine.host), message)

    def count_all(self, fault: str) -> None:
        for machine in self.machines:
            self.count(fault, machine)

    def look(self, life: Life, *, is_cut_short: bool = False) -> None:
        """Show the checkers a process after an event, or what it got to of one."""
        replica, node = life.replica, life.partition.node
        if replica.news:
            self.take_news(replica)
        self._note_report(life)
        if not self.is_watched:
            return
        self._show_snapshots(life)
        now = node.snapshot()
        known = self._looks.get(replica.key)
        before = known[1] if known is not None and known[0] is life else None
        if now == before:
            return
        if is_cut_short and now.log_end_offset != replica.end_offset:
            return
        self._looks[replica.key] = life, now
        if before is None or before.role != now.role or before.epoch != now.epoch:
            self.note(life.host, f"is {now.role} of epoch {now.epoch}, leader {now.leader}")
        files = life.machine.log_file_names() if now.log_start_offset else ()
        look = Look(replica, node, now, before, files)
        for checker in self.checkers:
            checker.on_event(look)

    def _show_snapshots(self, life: Life) -> None:
        for snapshot in life.partition.node.log.snapshots:
            if snapshot not in life.shown:
                life.shown.add(snapshot)
                data = life.snapshot_bytes(SnapshotId(*snapshot))
                self.note(life.host, f"has the snapshot {snapshot}", data=data)
                for checker in self.checkers:
                    checker.on_snapshot(life.replica, snapshot, data)

    def _note_report(self, life: Life) -> None:
        report = life.partition.last_report
        if report and report is not life.last_report:
            life.last_report = report
            self._reports.append(report)
            self.note(life.host, f"reports: {report}")

    def take_news(self, replica: Replica) -> None:
        news, replica.news = replica.news, []
        if not self.is_watched:
            return
        for is_append, batches, before in news:
            for checker in self.checkers:
                if is_append:
                    checker.on_append(replica, batches, before)
                elif batches:
                    checker.on_truncate(replica, batches)

    def on_opened(self, life: Life, state: QuorumState | None) -> None:
        """A process has recovered its log; raises ProcessEnded if it must be kept out."""
        machine, replica = life.machine, life.replica
        if not self.is_watched:
            return
        log = life.partition.log
        found = self.facts.committed_below(log.log_start_offset)
        found += (batch_of(header) for header in log.scan_headers())
        if machine.is_damaged and not _is_whole(replica, found, state, life.partition.node.local):
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
        self.take_news(replica)

    def on_vote(self, voter: ReplicaKey, epoch: int, candidate: ReplicaKey) -> None:
        for checker in self.checkers if self.is_watched else ():
            checker.on_vote(voter, epoch, candidate)

    def on_acknowledged(self, append: Append) -> None:
        self.note(append.client, f"is told offset {append.offset}")
        if self.is_watched:
            self.acknowledged.on_acknowledged(append)

    def on_refused(
        self, append: Append, node_id: int, error: ErrorCode, message: str | None
    ) -> None:
        """A leader that is deposed and does not know it yet may speak of sequences that it has missed."""
        leader = self.leader_machine()
        is_current = leader is not None and leader.id == node_id
        if append.is_idempotent and is_current and error in IMPOSSIBLE_REFUSALS:
            raise Violation(
                "an idempotent producer is not refused",
                f"{append.client}, batch {append.identity}: {error.name}, {message}",
            )

    def on_read(self, session: str, offset: int, batches: list[Batch]) -> None:
        if self.is_watched:
            self.reads.on_read(session, offset, batches)


def _acknowledged(leader: Machine, key: ReplicaKey) -> int:
    """The end of what this leader knows a replica to have on disk, -1 if nothing."""
    if leader.life is None:
        return -1
    rows = leader.life.partition.node.progress()
    return next((row.end_offset for row in rows if row.key == key), -1)


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
