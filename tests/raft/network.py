"""Several replicas on one simulated clock: messages are lost, delayed and reordered, disks forget.

Everything random comes from one seeded generator, so a seed is a whole history. After every step the
invariants of `quorumd.raft.invariants` hold for the replica that made it, and these for all together: one
leader an epoch, equal records wherever offset and epoch are equal, and one committed history.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from quorumd.raft import effects as fx
from quorumd.raft import events as ev
from quorumd.raft.config import RaftConfig, StoredState
from quorumd.raft.control import RaftControlRecord, VotersRecord
from quorumd.raft.invariants import check_state, check_step
from quorumd.raft.log_view import LogView, VoterEntry
from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey, Voter
from tests.raft.harness import CLUSTER, config_of, key

REQUEST_TIMEOUT_MS = 2000
RECORDS_MAX = 7
"""A fetch answer holds at most this many records, so that catching up takes several rounds."""


class Record(NamedTuple):
    epoch: int
    value: Any


@dataclass
class Disk:
    """What survives a crash, and the writes that may not."""

    records: list[Record] = field(default_factory=list)
    stored: StoredState = field(default_factory=StoredState)
    cluster_id: str | None = None
    was_removed: bool = False
    pending: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

    def complete(self, write: int) -> None:
        while self.pending and self.pending[0][0] <= write:
            self.pending.pop(0)[1]()


@dataclass
class Network:
    """How messages travel: latencies in ms, the share that is lost, and who cannot talk to whom."""

    latency_ms: tuple[int, int] = (1, 3)
    sync_ms: tuple[int, int] = (0, 3)
    loss: float = 0.0
    cut: set[tuple[int, int]] = field(default_factory=set)
    tells_of_deaths: bool = True

    def isolate(self, one: Iterable[int], others: Iterable[int]) -> None:
        self.cut |= {pair for a in one for b in others for pair in ((a, b), (b, a))}


class Replica:
    """One process: a `RaftNode`, its log in memory, and the effects that wait for its disk."""

    def __init__(self, cluster: Cluster, local: ReplicaKey, config: RaftConfig, disk: Disk) -> None:
        self.cluster, self.local, self.disk = cluster, local, disk
        self.records = list(disk.records)
        self.held: list[fx.SendRequest | fx.SendReply] = []
        self.fetched: dict[int, list[Record]] = {}
        self.is_stopped = False
        self.inbox: list[ev.Event] = []
        self.timer_at: int | None = None
        self.idle_fires = 0
        starts: list[tuple[int, int]] = []
        entries: list[VoterEntry] = []
        for offset, record in enumerate(self.records):
            if not starts or starts[-1][0] != record.epoch:
                starts.append((record.epoch, offset))
            if isinstance(record.value, VotersRecord):
                entries.append(VoterEntry(offset, record.value))
        end = len(self.records)
        draw = cluster.random.randrange
        self.node = RaftNode(config, disk.stored, LogView(0, end, end, starts, entries), draw)

    def start(self) -> None:
        self.perform(self.node.start(self.cluster.now_ms))

    @property
    def is_alive(self) -> bool:
        return self.cluster.replicas.get(self.local) is self

    def step(self, event: ev.Event) -> None:
        if self.is_stopped:
            if not isinstance(event, ev.TimerFired):
                self.inbox.append(event)
            return
        before = self.node.core.capture()
        effects = self.node.step(event, self.cluster.now_ms)
        after = self.node.core.capture()
        check_step(before, after)
        self.perform(effects)

    # -- effects

    def perform(self, effects: list[fx.Effect]) -> None:
        check_state(self.node.core.capture())
        self.cluster.steps += 1
        for effect in effects:
            match effect:
                case fx.SendRequest() | fx.SendReply():
                    self.held.append(effect)
                case fx.CancelHeldRequests():
                    self.held = [e for e in self.held if isinstance(e, fx.SendReply)]
                case fx.AnnounceHighWatermark(offset=offset):
                    self.cluster.note(f"{self.local.id} knows {offset} records to be committed")
                    self.cluster.note_committed(self, offset)
                case fx.AnnounceRole(role=role, epoch=epoch, reason=reason):
                    self.cluster.note_role(self, role, epoch, reason)
                case fx.AdoptClusterId(cluster_id=cluster_id):
                    self.disk.cluster_id = cluster_id
                case fx.PersistRemoval():
                    self.disk.was_removed = True
                case fx.Report() | fx.AnnounceVoters():
                    pass
                case fx.Halt(reason=reason):
                    raise AssertionError(reason)
                case _:
                    self._write(effect)
        self._release()
        self._set_timer()

    def _write(self, effect: Any) -> None:
        records, disk = self.records, self.disk
        apply: Callable[[], None]
        match effect:
            case fx.PersistQuorumState(epoch=epoch, leader=leader, voted=voted):
                state = StoredState(
                    epoch=epoch, leader=leader, voted=voted, applied_offset=effect.applied_offset
                )

                def apply() -> None:
                    disk.stored = state

            case fx.TruncateLog(end_offset=end):
                self.cluster.note(f"{self.local.id} cuts its log from {len(records)} to {end}")
                del records[end:]

                def apply() -> None:
                    del disk.records[end:]

            case _:
                new = self._new_records(effect)
                assert effect.base_offset == len(records), "an append leaves no gap"
                records += new
                self.cluster.note_records(effect.base_offset, new)
                base = effect.base_offset

                def apply() -> None:
                    assert base == len(disk.records), "the disk leaves no gap"
                    disk.records.extend(new)

        disk.pending.append((effect.write, apply))
        self.cluster.later(self.cluster.draw_sync_ms(), self._synced, effect.write)

    def _new_records(self, effect: Any) -> list[Record]:
        if isinstance(effect, fx.AppendControl):
            return [Record(effect.epoch, record) for record in effect.records]
        if isinstance(effect, fx.AppendClient):
            return [Record(effect.epoch, self.cluster.values[effect.token])]
        return self.fetched.pop(effect.token)

    def _synced(self, write: int) -> None:
        if self.is_alive and self.disk.pending and self.disk.pending[0][0] <= write:
            self.disk.complete(write)
            self.step(ev.WriteCompleted(write))

    def _release(self) -> None:
        """Send what waits for nothing any more."""
        first = self.disk.pending[0][0] if self.disk.pending else self.node.core.writes.last + 1
        ready = [effect for effect in self.held if effect.after < first]
        self.held = [effect for effect in self.held if effect.after >= first]
        for effect in ready:
            if isinstance(effect, fx.SendRequest):
                self.cluster.send(self, effect)
            else:
                self.cluster.reply(self, effect)

    def _set_timer(self) -> None:
        deadline = self.node.next_deadline_ms()
        if deadline is None or self.timer_at == deadline > self.cluster.now_ms:
            return
        self.timer_at = max(deadline, self.cluster.now_ms)
        self.cluster.later(self.timer_at - self.cluster.now_ms, self._fire, self.timer_at)

    def _fire(self, at: int) -> None:
        if self.is_alive and self.timer_at == at:
            self.timer_at = None
            deadline = self.node.next_deadline_ms()
            is_early = deadline is None or deadline > self.cluster.now_ms
            self.step(ev.TimerFired())
            after = self.node.next_deadline_ms()
            stuck = not is_early and after is not None and after <= self.cluster.now_ms
            self.idle_fires = self.idle_fires + 1 if stuck else 0
            assert self.is_stopped or self.idle_fires < 20, f"busy loop of {self.local}"


class Cluster:
    """The replicas, the clock, and what must be true of all of them together."""

    def __init__(
        self,
        seed: int,
        size: int = 3,
        observers: int = 0,
        start: bool = True,
        config: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.random = random.Random(seed)
        self.config = config
        self.answers: dict[int, fx.VoterChangeReply] = {}
        self.now_ms = 0
        self.network = Network()
        self.size = size
        self.keys = [key(i) for i in range(1, size + observers + 1)]
        self.disks: dict[ReplicaKey, Disk] = {k: Disk() for k in self.keys}
        self.replicas: dict[ReplicaKey, Replica] = {}
        self.queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.steps = self._sequence = 0
        self.values: dict[int, str] = {}
        self.waiting: dict[int, tuple[Replica, Callable[..., None]]] = {}
        self.leaders: dict[int, ReplicaKey] = {}
        self.history: dict[tuple[int, int], Any] = {}
        self.committed: list[Record] = []
        self.acknowledged: set[str] = set()
        self.log: list[str] = []
        if start:
            for k in self.keys:
                self.start(k)

    # -- time

    def later(self, delay_ms: int, action: Callable[..., None], *args: Any) -> None:
        self._sequence += 1
        heapq.heappush(self.queue, (self.now_ms + delay_ms, self._sequence, action, args))

    def run(self, ms: int, until: Callable[[], bool] | None = None) -> int:
        """Let `ms` pass, or less if `until` comes true. Returns how long it took."""
        start, end = self.now_ms, self.now_ms + ms
        while self.queue and self.queue[0][0] <= end:
            if until is not None and until():
                return self.now_ms - start
            self.now_ms, _, action, args = heapq.heappop(self.queue)
            action(*args)
        self.now_ms = end
        return ms

    def draw_sync_ms(self) -> int:
        return self.random.randint(*self.network.sync_ms)

    # -- processes

    def start(self, who: ReplicaKey, **more: Any) -> None:
        disk = self.disks[who]
        values: dict[str, Any] = {
            "is_bootstrap": who.id <= self.size and who == key(who.id),
            "cluster_id": disk.cluster_id,
            "new_cluster_id": CLUSTER,
            "was_removed": disk.was_removed,
            **self.config,
        }
        self.note(f"{who.id} starts")
        replica = Replica(self, who, config_of(who, self.size, **(values | more)), disk)
        self.replicas[who] = replica
        replica.start()
        self._tell(ev.ConnectionMade(id=who.id), who)

    def crash(self, who: ReplicaKey) -> None:
        """The process dies; of the writes that were not synced, a prefix may be on disk."""
        self.note(f"{who.id} crashes")
        del self.replicas[who]
        disk = self.disks[who]
        survivors = self.random.randint(0, len(disk.pending))
        for _, apply in disk.pending[:survivors]:
            apply()
        disk.pending.clear()
        if self.network.tells_of_deaths:
            self._tell(ev.ConnectionRefused(id=who.id), who)

    def _tell(self, event: ev.Event, about: ReplicaKey) -> None:
        """A reset connection is noticed after everything that was sent on it has arrived."""
        flight_ms = self.network.latency_ms[1]
        for other in list(self.replicas.values()):
            if other.local != about and (other.local.id, about.id) not in self.network.cut:
                self.later(flight_ms + self._latency_ms(), self._deliver, other, event)

    def stop(self, who: ReplicaKey) -> None:
        """As SIGSTOP does: connections stay, nothing moves."""
        self.note(f"{who.id} is stopped")
        self.replicas[who].is_stopped = True

    def resume(self, who: ReplicaKey) -> None:
        self.note(f"{who.id} goes on")
        replica = self.replicas[who]
        replica.is_stopped = False
        inbox, replica.inbox = replica.inbox, []
        for event in [*inbox, ev.TimerFired()]:
            replica.step(event)

    # -- messages

    def _latency_ms(self) -> int:
        return self.random.randint(*self.network.latency_ms)

    def _arrives(self, sender: Replica, to: Replica | None) -> bool:
        if to is None or (sender.local.id, to.local.id) in self.network.cut:
            return False
        return self.random.random() >= self.network.loss

    def _deliver(self, to: Replica, event: ev.Event) -> None:
        if to.is_alive:
            to.step(event)

    def _find(self, peer: fx.Peer) -> Replica | None:
        """Whoever runs at the address of this peer; a disk that was replaced is found there, too."""
        if isinstance(peer, fx.BootstrapServer):
            return self.replicas.get(self.keys[peer.index])
        return next((r for r in self.replicas.values() if r.local.id == peer.id), None)

    def send(self, sender: Replica, effect: fx.SendRequest) -> None:
        if isinstance(effect.to, ReplicaKey) and not isinstance(effect.request, fx.Fetch):
            self.note(f"{sender.local.id} -> {effect.to.id} {_in_words(effect.request)}")
        to, failure = (
            self._find(effect.to),
            ev.RequestFailed(request_id=effect.request_id, reason=""),
        )
        if to is None:
            self.later(self._latency_ms(), self._deliver, sender, failure)
            return
        self.later(REQUEST_TIMEOUT_MS, self._deliver, sender, failure)
        if not self._arrives(sender, to):
            return
        self._sequence += 1
        reply_to = self._sequence
        event, make_answer = self._translate(sender, effect, reply_to)
        self.waiting[reply_to] = (sender, make_answer)
        self.later(self._latency_ms(), self._deliver, to, event)

    def _translate(
        self, sender: Replica, effect: fx.SendRequest, reply_to: int
    ) -> tuple[ev.Event, Callable[..., ev.Event]]:
        request, node = effect.request, sender.node
        cluster_id = sender.disk.cluster_id
        voter = effect.to if isinstance(effect.to, ReplicaKey) else None
        base: dict[str, Any] = {"reply_to": reply_to, "cluster_id": cluster_id}
        known = {"request_id": effect.request_id}
        match request:
            case fx.Vote(epoch=epoch, last=last, pre_vote=pre_vote):
                event: ev.Event = ev.VoteRequestReceived(
                    **base,
                    voter=voter,
                    candidate=sender.local,
                    epoch=epoch,
                    last=last,
                    pre_vote=pre_vote,
                )
                return event, lambda a, _: ev.VoteResponseReceived(
                    **known, **_head(a), granted=a.granted
                )
            case fx.BeginQuorumEpoch(epoch=epoch):
                event = ev.BeginQuorumEpochRequestReceived(
                    **base,
                    voter=voter,
                    leader_id=sender.local.id,
                    epoch=epoch,
                    endpoints=node.config.endpoints,
                )
                return event, lambda a, _: ev.BeginQuorumEpochResponseReceived(**known, **_head(a))
            case fx.EndQuorumEpoch(epoch=epoch, leader_id=leader_id, successors=successors):
                event = ev.EndQuorumEpochRequestReceived(
                    **base,
                    leader_id=leader_id,
                    epoch=epoch,
                    successors=successors,
                    endpoints=node.config.endpoints,
                )
                return event, lambda a, _: ev.EndQuorumEpochResponseReceived(**known, **_head(a))
            case fx.Fetch(epoch=epoch, position=position, high_watermark=high_watermark):
                event = ev.FetchRequestReceived(
                    **base,
                    replica=sender.local,
                    epoch=epoch,
                    position=position,
                    max_wait_ms=500,
                    high_watermark=high_watermark,
                )
                return event, lambda a, records: ev.FetchResponseReceived(
                    **known,
                    **_head(a),
                    high_watermark=a.high_watermark,
                    diverging=a.diverging,
                    records=self._pack(sender, a, records),
                )

            case fx.UpdateVoter(epoch=epoch, endpoints=endpoints):
                voter_now = Voter(sender.local, endpoints)
                event = ev.UpdateVoterRequested(**base, epoch=epoch, voter=voter_now)
                return event, lambda a, _: ev.VoterChangeResponseReceived(**known, **_head(a))
            case fx.AddVoter(endpoints=endpoints):
                event = ev.AddVoterRequested(
                    **base,
                    voter=Voter(sender.local, endpoints),
                    timeout_ms=1000,
                    ack_when_committed=False,
                )
                return event, lambda a, _: ev.VoterChangeResponseReceived(**known, error=a.error)
            case fx.RemoveVoter(key=removed):
                event = ev.RemoveVoterRequested(**base, key=removed, timeout_ms=1000)
                return event, lambda a, _: ev.VoterChangeResponseReceived(**known, error=a.error)

    def ask(self, make: Callable[..., ev.Event], **values: Any) -> int:
        """An operator asks the leader, if there is one; the answer comes to `answers`."""
        self._sequence += 1
        request = self._sequence
        target = self.leader()
        if target is not None and not target.is_stopped:
            self.note(f"{target.local.id} is asked: {make.__name__} {values}")
            target.step(make(reply_to=request, **values))
        return request

    def reply(self, sender: Replica, effect: fx.SendReply) -> None:
        if effect.reply_to not in self.waiting:
            assert isinstance(effect.reply, fx.VoterChangeReply)
            assert effect.reply_to not in self.answers, "a request is answered once"
            self.answers[effect.reply_to] = effect.reply
            self.note(f"{sender.local.id} answers {effect.reply.error} {effect.reply.message}")
            return
        asker, make_answer = self.waiting.pop(effect.reply_to)
        answer, records = effect.reply, []
        if isinstance(answer, fx.FetchReply) and answer.read_from is not None:
            end = min(answer.read_to, answer.read_from + RECORDS_MAX)
            records = sender.records[answer.read_from : end]
        if self._arrives(sender, asker):
            if answer.top_level_error is not None:
                return  # the asker's request runs out of time
            self.later(
                self._latency_ms(), self._deliver_answer, asker, make_answer, answer, records
            )

    def _deliver_answer(
        self, to: Replica, make: Callable[..., ev.Event], answer: fx.Reply, records: list[Record]
    ) -> None:
        if to.is_alive:
            to.step(make(answer, records))

    def _pack(
        self, to: Replica, answer: fx.FetchReply, records: list[Record]
    ) -> ev.FetchedRecords | None:
        if not records or answer.read_from is None:
            return None
        base, runs, control = answer.read_from, [], []
        for offset, record in enumerate(records, base):
            if not runs or runs[-1][0] != record.epoch:
                runs.append((record.epoch, offset))
            if isinstance(record.value, RaftControlRecord):
                control.append((offset, record.value))
        self._sequence += 1
        to.fetched[self._sequence] = records
        return ev.FetchedRecords(
            token=self._sequence,
            base_offset=base,
            end_offset=base + len(records),
            epochs=tuple(runs),
            control=tuple(control),
        )

    # -- clients

    def leader(self) -> Replica | None:
        """The replica that leads in the highest epoch, if it runs."""
        leading = [r for r in self.replicas.values() if r.node.role is Role.LEADER]
        return max(leading, key=lambda r: r.node.epoch, default=None)

    def append(self, to: Replica | None = None) -> str | None:
        """A client writes one record, to the leader unless told otherwise."""
        target = to or self.leader()
        if target is None or target.is_stopped or target.node.append_refusal is not None:
            return None
        self._sequence += 1
        value = f"value-{self._sequence}"
        self.values[self._sequence] = value
        target.step(ev.AppendRequested(self._sequence, 1))
        return value

    def settle(self, ms: int = 10_000) -> int:
        """Heal everything and wait until a new record is committed on every replica."""
        self.network = Network()
        for who in self.keys:
            if who not in self.replicas:
                self.start(who)
            elif self.replicas[who].is_stopped:
                self.resume(who)
        values: set[str] = set()

        def is_settled() -> bool:
            leader = self.leader()
            if leader is None or not leader.node.high_watermark:
                return False
            if not values & {
                record.value for record in leader.records if isinstance(record.value, str)
            }:
                value = self.append()
                values.update({value} if value else ())
            end = len(leader.records)
            running = self.replicas.values()
            return bool(values) and all(
                r.node.high_watermark == end == len(r.records) for r in running
            )

        took = self.run(ms, is_settled)
        assert is_settled(), f"no progress within {ms} ms: {self.describe()}"
        assert values & self.acknowledged
        return took

    # -- what must hold

    def note(self, text: str) -> None:
        self.log.append(f"{self.now_ms:>6} {text}")

    def note_role(self, replica: Replica, role: Role, epoch: int, reason: str) -> None:
        leader = replica.node.leader_id or "unknown"
        self.note(f"{replica.local.id} is {role} in epoch {epoch}, leader {leader}: {reason}")
        if role is Role.LEADER:
            assert self.leaders.setdefault(epoch, replica.local) == replica.local, "two leaders"
            if epoch == max(self.leaders):
                assert replica.records[: len(self.committed)] == self.committed, "not complete"

    def note_records(self, base: int, records: list[Record]) -> None:
        for offset, record in enumerate(records, base):
            known = self.history.setdefault((offset, record.epoch), record.value)
            assert known == record.value, f"two records at {offset} in epoch {record.epoch}"

    def note_committed(self, replica: Replica, offset: int) -> None:
        have = len(self.committed)
        assert replica.records[: min(have, offset)] == self.committed[:offset], "histories differ"
        new = replica.records[have:offset]
        assert offset <= max(have, len(replica.records)), "committed beyond the log"
        self.committed += new
        if replica.node.role in (Role.LEADER, Role.RESIGNED):
            self.acknowledged |= {r.value for r in new if isinstance(r.value, str)}

    def check_end(self) -> None:
        """Nothing that a client was told of is missing anywhere."""
        kept = {record.value for record in self.committed if isinstance(record.value, str)}
        assert self.acknowledged <= kept
        for replica in self.replicas.values():
            assert replica.records[: len(self.committed)] == self.committed[: len(replica.records)]
        sets = [r.value.voters.keys for r in self.committed if isinstance(r.value, VotersRecord)]
        assert all(len(set(a) ^ set(b)) <= 1 for a, b in pairwise(sets)), sets

    def describe(self) -> str:
        rows = [
            f"{r.local}: {r.node.role} epoch={r.node.epoch} leader={r.node.leader} "
            f"end={len(r.records)} hw={r.node.high_watermark} voters={[str(k) for k in r.node.voters.keys]}"
            for r in self.replicas.values()
        ]
        return "\n".join([*rows, *self.log[-40:]])


def _in_words(request: fx.Request) -> str:
    match request:
        case fx.Vote(epoch=epoch, last=last, pre_vote=pre_vote):
            kind = "pre-vote" if pre_vote else "vote"
            return (
                f"asks for a {kind} in epoch {epoch}, log end {last.offset} of epoch {last.epoch}"
            )
        case fx.BeginQuorumEpoch(epoch=epoch):
            return f"leads epoch {epoch}"
        case fx.EndQuorumEpoch(epoch=epoch, successors=successors):
            order = ", ".join(str(successor.id) for successor in successors) or "nobody named"
            return f"ends epoch {epoch}, next: {order}"
        case fx.Fetch():
            return "fetches"
    return f"{request}"


def _head(answer: fx.Reply) -> dict[str, Any]:
    return {
        "error": answer.error,
        "hint": ev.LeaderHint(
            epoch=answer.epoch,
            leader_id=answer.leader_id,
            endpoints=answer.leader_endpoints,
        ),
    }
