"""A small quorum without chaos: what goes wrong is scripted, and what happens is recorded line by line.

The daemon's code on fixed settings: latencies of 1 to 3 ms, syncs of up to 3 ms, timeouts as by default.
All checkers watch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from random import Random
from unittest.mock import patch

from quorumd.raft import effects as fx
from quorumd.raft.events import Event
from quorumd.raft.node import RaftNode
from quorumd.raft.types import ReplicaKey
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from quorumd.wire.metadata_topic import TOPIC
from quorumd.wire.records import Record, build_batch
from simulation.clients.client import Client
from simulation.clients.operator import ChangeResponse, Operator
from simulation.clients.producer import FIRST_TIMESTAMP_MS, PRODUCE, PRODUCE_VERSION
from simulation.cluster import Cluster
from simulation.history.appends import Append
from simulation.history.replica import batches_of
from simulation.history.risk import Risk
from simulation.history.voter_change_requests import VoterChangeKind, VoterChangeRequest
from simulation.machines.machine import Machine
from simulation.scheduler import MS
from simulation.settings import Settings

SETTLE_MS = 10_000
CUT = "scripted"


def settings_of(
    voters: int = 3,
    observers: int = 0,
    *,
    is_dynamic: bool = False,
    auto_join: bool = False,
) -> Settings:
    """Settings of the daemon, and no faults."""
    return Settings(
        voters=voters,
        observers=observers,
        fetch_timeout_ms=2000,
        election_timeout_ms=1000,
        backoff_max_ms=1000,
        request_timeout_ms=2000,
        retry_backoff_ms=20,
        segment_bytes=1 << 20,
        batch_bytes_max=1 << 20,
        chaos_us=0,
        producers=0,
        readers=0,
        pause_between_appends_us=0,
        values_bytes_max=100,
        snapshot_bytes=1 << 40,
        retention_bytes=None,
        snapshot_bandwidth=None,
        snapshot_memory_bytes=1 << 20,
        is_dynamic=is_dynamic,
        auto_join=auto_join,
        faults={},
    )


class Scenario:
    """See the module's docstring. `random` is for what the script leaves open; no machine runs yet."""

    def __init__(self, seed: int, settings: Settings | None = None) -> None:
        self.random = Random(f"{seed}/scenario")
        self.cluster = Cluster(seed, settings or settings_of())
        self.env = self.cluster.env
        self.env.network.conditions.latency_us = (1 * MS, 3 * MS)
        self.env.facts.is_undisturbed = False  # the checkers do not know what the script does
        self.lines: list[str] = []
        self._risk = Risk(self.env.facts, auto_join=self.env.settings.auto_join)
        self._clients = 0
        for machine in self.machines:
            machine.speed.sync_us = (0, 3 * MS)

    # -- what there is

    @property
    def machines(self) -> list[Machine]:
        """All machines."""
        return self.cluster.machines

    def machine(self, node_id: int) -> Machine:
        """The machine of this node id."""
        return next(machine for machine in self.machines if machine.id == node_id)

    def node(self, machine: Machine) -> RaftNode:
        """Of a machine that runs."""
        assert machine.process is not None, f"{machine.host} runs"
        return machine.process.node

    @property
    def leader(self) -> Machine:
        """The machine that leads."""
        leader = self.cluster.leader_machine()
        assert leader is not None, "a machine leads"
        return leader

    def others(self, machine: Machine) -> list[Machine]:
        """All machines but this one."""
        return [other for other in self.machines if other is not machine]

    def voters(self) -> tuple[ReplicaKey, ...]:
        """Voters that are committed."""
        return self.env.facts.voters.current

    def is_led(self, after_epoch: int = 0) -> bool:
        """True if a leader of a later epoch has committed a record of its own."""
        leader = self.cluster.leader_machine()
        if leader is None or leader.process is None or leader.is_paused:
            return False
        node = leader.process.node
        return node.epoch > after_epoch and node.high_watermark is not None

    # -- what happens

    def run(self, ms: int, until: Callable[[], bool] = lambda: False) -> int:
        """Let `ms` pass, or less if `until` comes true. Returns how many did."""
        scheduler = self.env.scheduler
        begin_us = scheduler.now_us
        while not until() and scheduler.step(begin_us + ms * MS):
            pass
        return (scheduler.now_us - begin_us) // MS

    def start(self, *machines: Machine) -> None:
        """All of them, unless some are named."""
        for machine in machines or self.machines:
            self.record(machine, "starts")
            machine.start()

    def kill(self, machine: Machine) -> None:
        """Kills a machine's process; it does not come back by itself."""
        self.record(machine, "crashes")
        machine.is_wanted = False
        machine.end_process("kill -9")

    def resign(self, machine: Machine) -> None:
        """Tells a process that it is about to shut down: a leader hands over."""
        process = machine.process
        assert process is not None, f"{machine.host} runs"
        process.run(process.partition.resign)

    def isolate(self, machine: Machine) -> None:
        """Cuts a machine off: it reaches no other one, and no other one reaches it."""
        here, others = [machine.host], [other.host for other in self.others(machine)]
        self.env.network.cut(here, others, CUT)
        self.env.network.cut(others, here, CUT)

    def rejoin(self, machine: Machine) -> None:
        """Takes `isolate` back."""
        for other in self.others(machine):
            self.env.network.mend(machine.host, other.host, CUT)
            self.env.network.mend(other.host, machine.host, CUT)

    def append(self, to: Machine | None = None) -> Append:
        """A client writes one record, to the leader unless another machine is named."""
        self._clients += 1
        client = OneAppend(self.cluster, f"client{self._clients}", self.random)
        client.target = (to or self.leader).host
        client.start()
        return client.append

    def request(
        self, kind: VoterChangeKind, key: ReplicaKey | None = None, target: Sequence[int] = ()
    ) -> VoterChangeRequest:
        """An operator asks for a change of the voters, or of the leader."""
        request = VoterChangeRequest(kind, key, tuple(target) or None)
        operator = Operator(self.cluster, self._risk, "operator", self.random, kind, [request])
        operator.target = self.leader.host
        operator.start()
        return request

    def outcome(self, request: VoterChangeRequest) -> str | None:
        """The last response to an operator: `done` or an error's name."""
        self.run(7_000, lambda: request.outcome is not None)
        return request.outcome

    def refusal(self, kind: VoterChangeKind, key: ReplicaKey) -> str | None:
        """The error that the leader responds with, or `NONE`."""
        request = VoterChangeRequest(kind, key)
        operator = OneQuestion(self.cluster, self._risk, "operator", self.random, kind, [request])
        operator.target = self.leader.host
        operator.start()
        return self.outcome(request)

    def settle(self, ms: int = SETTLE_MS) -> None:
        """Mend the network, start what is down, and wait until a new record is committed everywhere."""
        self.env.network.heal()
        self.env.network.conditions.latency_us = (1 * MS, 3 * MS)
        for machine in self.machines:
            machine.heal()
            machine.start()
        self.run(ms, self.is_led)
        append = self.append()
        self.run(ms, lambda: self._is_settled(append))
        assert self._is_settled(append), f"no progress within {ms} ms:\n{self.described()}"

    def _is_settled(self, append: Append) -> bool:
        leader = self.cluster.leader_machine()
        if leader is None or not leader.replica.log or append.identity not in self._written():
            return False
        end_offset = leader.replica.end_offset
        return all(
            machine.process is not None
            and machine.process.node.high_watermark == end_offset
            and machine.replica.log == leader.replica.log
            for machine in self.machines
        )

    def _written(self) -> set[object]:
        return {batch.identity for batch in self.env.facts.committed}

    def check_end(self) -> None:
        """Everything that was acknowledged is there once."""
        self.env.observer.on_end()

    def described(self) -> str:
        """State of each machine, and the last lines."""
        rows = []
        for machine in self.machines:
            if machine.process is None:
                rows.append(f"{machine.host} is down")
                continue
            status = machine.process.node
            rows.append(
                f"{machine.replica.key}: {status.role} of epoch {status.epoch}, log end"
                f" {status.log_end_offset}, high watermark {status.high_watermark}"
            )
        return "\n".join([*rows, *self.lines[-40:]])

    # -- what is recorded

    def record(self, machine: Machine, what: str) -> None:
        """A line about this machine."""
        self.note(f"{machine.id} {what}")

    def note(self, what: str) -> None:
        """A line with the ms since the beginning."""
        self.lines.append(f"{self.env.scheduler.now_us // MS:>6} {what}")

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within the block `lines` gets what the rules of all nodes ask for: roles, requests, commits."""
        start, step = RaftNode.start, RaftNode.step

        def start_and_record(node: RaftNode, now_ms: int) -> list[fx.Effect]:
            effects = start(node, now_ms)
            self._record_effects(node, 0, effects)
            return effects

        def step_and_record(node: RaftNode, event: Event, now_ms: int) -> list[fx.Effect]:
            end_offset = node.log_end_offset
            effects = step(node, event, now_ms)
            self._record_effects(node, end_offset, effects)
            return effects

        with (
            patch.object(RaftNode, "start", start_and_record),
            patch.object(RaftNode, "step", step_and_record),
        ):
            yield

    def _record_effects(self, node: RaftNode, end_offset: int, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.AnnounceRole(role=role, epoch=epoch, leader_id=leader_id):
                    leader = leader_id or "unknown"
                    what = f"is {role} in epoch {epoch}, leader {leader}: {effect.reason}"
                case fx.AnnounceHighWatermark(offset=offset):
                    what = f"knows {offset} records to be committed"
                case fx.TruncateLog(end_offset=cut_at):
                    what = f"cuts its log from {end_offset} to {cut_at}"
                case fx.SendRequest(to=ReplicaKey() as to, request=request):
                    if isinstance(request, fx.Fetch):
                        continue
                    what = f"-> {to.id} {_rendered(request)}"
                case _:
                    continue
            self.note(f"{node.local.id} {what}")


class OneQuestion(Operator):
    """Asks once, and takes any response."""

    def on_response(self, request: VoterChangeRequest, response: ChangeResponse) -> None:
        self.end(response.error.name)


class OneAppend(Client):
    """Writes one record once; `append` says what became of it."""

    @cached_property
    def _record(self) -> Record:
        timestamp = FIRST_TIMESTAMP_MS + len(self.env.facts.appends) + 1
        return Record(0, timestamp, None, self.name.encode(), ())

    @cached_property
    def _batch(self) -> bytes:
        return build_batch([self._record], producer_id=-1, producer_epoch=-1, base_sequence=-1)

    @cached_property
    def append(self) -> Append:
        """The batch, and what the client knows of it."""
        identity = batches_of(self._batch)[0].identity
        return Append(self.name, identity, 1, False, self.env.scheduler.now_us)

    def start(self) -> None:
        facts = self.env.facts
        facts.records[self.append.identity] = [self._record]
        facts.appends.append(self.append)
        partition = ProduceRequestPartition(index=0, records=self._batch)
        topic = ProduceRequestTopic(name=TOPIC, partition_data=(partition,))
        message = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(topic,))
        self.ask(
            PRODUCE,
            PRODUCE_VERSION,
            message,
            self._on_response,
            lambda: None,
            is_repeatable=False,
        )

    def _on_response(self, frame: bytes) -> None:
        response = self.decode_response(ProduceResponse, PRODUCE, PRODUCE_VERSION, frame)
        found = response.responses[0].partition_responses[0]
        if found.error_code == ErrorCode.NONE:
            self.append.acknowledged_us = self.env.scheduler.now_us
            self.append.offset = found.base_offset
            assert self.served is not None, "a response was given by a node"
            self.env.observer.on_acknowledged(self.append, self.served)


def _rendered(request: fx.Request) -> str:
    match request:
        case fx.Vote(epoch=epoch, last=last, pre_vote=pre_vote):
            kind = "pre-vote" if pre_vote else "vote"
            return (
                f"asks for a {kind} in epoch {epoch}, log end {last.offset} of epoch {last.epoch}"
            )
        case fx.BeginQuorumEpoch(epoch=epoch):
            return f"leads epoch {epoch}"
        case fx.EndQuorumEpoch(epoch=epoch, successors=successors):
            order = ", ".join(str(successor.id) for successor in successors) or "no one named"
            return f"ends epoch {epoch}, next: {order}"
    return f"{request}"
