"""One replica under test: builders for every role, and a bench that checks each step it makes.

A `Bench` owns the clock of its replica. Whatever the replica asks for is collected, and the invariants
of `quorumd.raft.invariants` are checked around every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from uuid import UUID

from quorumd.raft.config import RaftConfig, StoredState
from quorumd.raft.control import KRaftVersionRecord, LeaderChangeRecord, VotersRecord
from quorumd.raft.effects import (
    Effect,
    Fetch,
    FetchReply,
    Peer,
    Reply,
    Report,
    Request,
    SendReply,
    SendRequest,
    Vote,
    VoteReply,
)
from quorumd.raft.events import (
    BeginQuorumEpochRequestReceived,
    EndQuorumEpochRequestReceived,
    Event,
    FetchedRecords,
    FetchRequestReceived,
    FetchResponseReceived,
    LeaderHint,
    RequestFailed,
    ResignationRequested,
    TimerFired,
    VoteRequestReceived,
    VoteResponseReceived,
    WriteCompleted,
)
from quorumd.raft.invariants import check_state, check_step
from quorumd.raft.log_view import LogView, VoterEntry
from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.raft.types import Endpoint, OffsetAndEpoch, ReplicaKey, Voter, VoterSet
from simulation.default_raft_config import default_raft_config

CLUSTER = "cluster-a"
FIRES_MAX = 5_000
"""No test needs more timers: what it waits for does not come."""
E = TypeVar("E")
R = TypeVar("R", bound=Request)


def key(replica_id: int, disk: int = 0) -> ReplicaKey:
    """The key of a replica; another `disk` is another storage id."""
    return ReplicaKey(replica_id, UUID(int=replica_id * 1000 + disk + 1))


def endpoints(replica_id: int) -> tuple[Endpoint, ...]:
    return (Endpoint("CONTROLLER", f"host{replica_id}", 9093),)


def voter_set(*ids: int, by_id: bool = False) -> VoterSet:
    return VoterSet.of(Voter(ReplicaKey(i) if by_id else key(i), endpoints(i)) for i in ids)


def keyed_set(*keys: ReplicaKey) -> VoterSet:
    return VoterSet.of(Voter(k, endpoints(k.id)) for k in keys)


def log_of(*epochs: int, voters: VoterSet | None = None, cluster_id: str = CLUSTER) -> LogView:
    """A synced log with one record for each epoch given; the record at offset 1 names the voters."""
    starts: list[tuple[int, int]] = []
    for offset, epoch in enumerate(epochs):
        if not starts or starts[-1][0] != epoch:
            starts.append((epoch, offset))
    entries = [] if voters is None else [VoterEntry(1, VotersRecord(voters, cluster_id))]
    return LogView(0, len(epochs), len(epochs), starts, entries)


class Bench:
    """A replica, its clock, and what it asked for in its last step and in all of them."""

    def __init__(
        self,
        config: RaftConfig,
        stored: StoredState,
        log: LogView,
        draw: Callable[[int], int] = lambda bound: bound // 2,
        now_ms: int = 10_000,
    ) -> None:
        self.node = RaftNode(config, stored, log, draw)
        self.now_ms = now_ms
        self.all: list[Effect] = []
        self.last: list[Effect] = []
        self._replies: dict[int, Reply] = {}
        self._next_reply = 0
        self._fires = 0
        self._note(self.node.start(now_ms))

    def _note(self, effects: list[Effect]) -> list[Effect]:
        check_state(self.node.core.capture())
        self.last = effects
        self.all += effects
        for effect in effects:
            if isinstance(effect, SendReply):
                assert effect.reply_to not in self._replies, "a request is answered once"
                self._replies[effect.reply_to] = effect.reply
        return effects

    # -- making things happen

    def step(self, event: Event, after_ms: int = 0) -> list[Effect]:
        self.now_ms += after_ms
        before = self.node.core.capture()
        effects = self.node.step(event, self.now_ms)
        check_step(before, self.node.core.capture())
        return self._note(effects)

    def sync(self, after_ms: int = 0) -> list[Effect]:
        """Everything written so far reaches the disk."""
        return self.step(WriteCompleted(self.node.core.writes.last), after_ms)

    def fire(self) -> list[Effect]:
        """Let time pass until the replica's own deadline."""
        deadline = self.node.next_deadline_ms()
        assert deadline is not None, "there is no deadline"
        self._fires += 1
        assert self._fires <= FIRES_MAX, f"{FIRES_MAX} timers fired, and it is still {self.role}"
        self.now_ms = max(self.now_ms, deadline)
        return self.step(TimerFired())

    def wait(self, ms: int) -> list[Effect]:
        """Let `ms` pass, firing every deadline on the way; returns all effects of that time."""
        end, seen = self.now_ms + ms, len(self.all)
        for _ in range(1000):
            deadline = self.node.next_deadline_ms()
            if deadline is None or deadline > end:
                break
            self.fire()
        else:
            raise AssertionError("a busy loop: 1000 timers fired")
        self.now_ms = end
        self.step(TimerFired())
        self.last = self.all[seen:]
        return self.last

    def ask(self, make: Callable[..., Event], **values: Any) -> Reply | None:
        """Send a request that the event class stands for; returns its answer, None if it is held."""
        self._next_reply += 1
        self.step(make(reply_to=self._next_reply, **values))
        return self.answer_to(self._next_reply)

    # -- looking

    @property
    def role(self) -> Role:
        return self.node.role

    def find(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.last if isinstance(effect, kind)]

    def find_all(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.all if isinstance(effect, kind)]

    @property
    def reports(self) -> str:
        return "\n".join(effect.reason for effect in self.find_all(Report))

    def answer_to(self, reply_to: int) -> Reply | None:
        return self._replies.get(reply_to)

    def requests(self, kind: type[R], effects: list[Effect] | None = None) -> list[SendRequest]:
        """The requests of this kind among the effects, by default those of the last step."""
        found = self.last if effects is None else effects
        return [e for e in found if isinstance(e, SendRequest) and isinstance(e.request, kind)]

    def outstanding(self, kind: type[R], to: Peer | None = None) -> SendRequest:
        """The newest request of this kind (and to this peer) that still waits for its answer."""
        for effect in reversed(self.requests(kind, self.all)):
            if effect.request_id in self.node.core.requests.in_flight and to in (None, effect.to):
                return effect
        raise AssertionError(f"no {kind.__name__} to {to} is in flight")

    # -- requests of peers

    def vote(
        self, candidate: ReplicaKey, epoch: int, last: tuple[int, int], **more: Any
    ) -> VoteReply:
        """`last` is (offset, epoch) of the candidate's log end."""
        values = {"cluster_id": CLUSTER, "voter": self.node.local, "pre_vote": False} | more
        answer = self.ask(
            VoteRequestReceived,
            candidate=candidate,
            epoch=epoch,
            last=OffsetAndEpoch(*last),
            **values,
        )
        assert isinstance(answer, VoteReply)
        return answer

    def pre_vote(self, candidate: ReplicaKey, epoch: int, last: tuple[int, int]) -> VoteReply:
        return self.vote(candidate, epoch, last, pre_vote=True)

    def begin(self, leader_id: int, epoch: int, *, says_so: bool = True, **more: Any) -> Reply:
        """BeginQuorumEpoch. If the replica asks the leader thereupon, that one `says_so` at once, or
        has not answered yet."""
        asked = len(self.all)
        values = {
            "cluster_id": CLUSTER,
            "voter": self.node.local,
            "endpoints": endpoints(leader_id),
        } | more
        answer = self.ask(
            BeginQuorumEpochRequestReceived, leader_id=leader_id, epoch=epoch, **values
        )
        assert answer is not None
        if says_so:
            for question in self.requests(Vote, self.all[asked:]):
                if question.to.id == leader_id and question.request.pre_vote:
                    at = tuple(values["endpoints"])
                    self.hinted(
                        question, LeaderHint(epoch=epoch, leader_id=leader_id, endpoints=at)
                    )
        return answer

    def hinted(self, question: SendRequest, hint: LeaderHint, error: str | None = None) -> None:
        """The answer to what this replica has asked by Vote."""
        self.step(
            VoteResponseReceived(
                request_id=question.request_id, error=error, hint=hint, granted=False
            )
        )

    def end(
        self,
        leader_id: int | None,
        epoch: int,
        *successors: ReplicaKey,
        says_so: bool = True,
        **more: Any,
    ) -> Reply:
        """EndQuorumEpoch. The leader that is fetched from `says_so` too, before it or not yet."""
        leader = self.node.leader
        if says_so and leader is not None and leader.id == leader_id and epoch == self.node.epoch:
            hint = LeaderHint(epoch=epoch, leader_id=leader_id)
            self.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=hint, to=leader)
        known = () if leader_id is None else endpoints(leader_id)
        values = {"cluster_id": CLUSTER, "endpoints": known} | more
        answer = self.ask(
            EndQuorumEpochRequestReceived,
            leader_id=leader_id,
            epoch=epoch,
            successors=successors,
            **values,
        )
        assert answer is not None
        return answer

    def fetch(
        self, replica: ReplicaKey | None, offset: int, last_epoch: int, **more: Any
    ) -> FetchReply | None:
        values = {
            "cluster_id": CLUSTER,
            "epoch": self.node.epoch,
            "max_wait_ms": 500,
            "high_watermark": -1,
        } | more
        answer = self.ask(
            FetchRequestReceived,
            replica=replica,
            position=OffsetAndEpoch(offset, last_epoch),
            **values,
        )
        assert answer is None or isinstance(answer, FetchReply)
        return answer

    # -- answers of peers

    def grant(self, to: ReplicaKey, granted: bool = True) -> list[Effect]:
        return self.step(
            VoteResponseReceived(
                request_id=self.outstanding(Vote, to).request_id,
                error=None,
                hint=LeaderHint(epoch=self.node.epoch, leader_id=None),
                granted=granted,
            )
        )

    def fetched(
        self,
        *,
        epochs: Iterable[int] = (),
        high_watermark: int | None = None,
        diverging: tuple[int, int] | None = None,
        control: tuple[tuple[int, Any], ...] = (),
        error: str | None = None,
        hint: LeaderHint | None = None,
        to: ReplicaKey | None = None,
        after_ms: int = 0,
    ) -> list[Effect]:
        """The answer to the fetch in flight: one record of each epoch given, or what else is said."""
        request = self.outstanding(Fetch, to)
        base = self.node.core.log.end_offset
        runs = log_of(*epochs).epoch_starts
        records = None
        if runs:
            count = len(list(epochs))
            shifted = tuple((epoch, base + at) for epoch, at in runs)
            records = FetchedRecords(
                token=1, base_offset=base, end_offset=base + count, epochs=shifted, control=control
            )
        leader = self.node.leader_id
        return self.step(
            FetchResponseReceived(
                request_id=request.request_id,
                error=error,
                hint=hint or LeaderHint(epoch=self.node.epoch, leader_id=leader),
                high_watermark=high_watermark,
                diverging=None if diverging is None else OffsetAndEpoch(*diverging),
                records=records,
            ),
            after_ms,
        )

    def fail(self, kind: type[R], to: ReplicaKey | None = None, **more: Any) -> list[Effect]:
        request = self.outstanding(kind, to)
        return self.step(RequestFailed(request_id=request.request_id, reason="refused", **more))


# -- builders: replica 1 of the voters 1 to `size`, in epoch 3 with a log of epochs 1, 1, 2 of which
# the first two records are known to be committed


def config_of(local: ReplicaKey | None = None, size: int = 3, **more: Any) -> RaftConfig:
    me = key(1) if local is None else local
    values: dict[str, Any] = {
        "endpoints": endpoints(me.id),
        "configured_voters": voter_set(*range(1, size + 1), by_id=True),
        "cluster_id": CLUSTER,
    } | more
    return default_raft_config(me, **values)


def unattached(size: int = 3, log: LogView | None = None, **more: Any) -> Bench:
    stored = more.pop("stored", StoredState(epoch=3, applied_offset=2))
    draw = more.pop("draw", lambda bound: bound // 2)
    voters = voter_set(*range(1, size + 1))
    return Bench(config_of(size=size, **more), stored, log or log_of(1, 1, 2, voters=voters), draw)


def follower(size: int = 3, leader: int = 2, contact: bool = True, **more: Any) -> Bench:
    """Follows replica 2; with `contact` that one has answered a fetch just now."""
    bench = unattached(size, **more)
    bench.begin(leader, 3)
    bench.sync()
    if contact:
        bench.fetched()
    return bench


def prospective(size: int = 3, **more: Any) -> Bench:
    """Asks for pre-votes; knows no leader."""
    bench = unattached(size, **more)
    bench.fire()
    while bench.role is Role.UNATTACHED:
        bench.fire()
    return bench


def candidate(size: int = 3, **more: Any) -> Bench:
    """Asks for votes in epoch 4; its own vote is on disk."""
    bench = prospective(size, **more)
    for other in bench.node.core.other_voters():
        if bench.role is Role.PROSPECTIVE:
            bench.grant(other)
    bench.sync()
    return bench


def leader(size: int = 3, **more: Any) -> Bench:
    """Leads epoch 4 by the votes of a majority; its own log is synced, nothing is committed."""
    bench = candidate(size, **more)
    for other in bench.node.core.other_voters():
        if bench.role is Role.CANDIDATE:
            bench.grant(other)
    bench.sync()
    return bench


def resigned(size: int = 3, **more: Any) -> Bench:
    bench = leader(size, **more)
    bench.step(ResignationRequested("maintenance", shutting_down=False))
    return bench


def observer(**more: Any) -> Bench:
    """Replica 9, outside the voter set, follows replica 2 in epoch 3."""
    values = {"local": key(9)} | more
    bench = unattached(**values)
    bench.begin(2, 3)
    bench.sync()
    return bench


BUILDERS: dict[Role, Callable[..., Bench]] = {
    Role.UNATTACHED: unattached,
    Role.FOLLOWER: follower,
    Role.PROSPECTIVE: prospective,
    Role.CANDIDATE: candidate,
    Role.LEADER: leader,
    Role.RESIGNED: resigned,
    Role.OBSERVER: observer,
}


def fresh(local_id: int, size: int = 3, **more: Any) -> Bench:
    """A directory without anything in it, formatted as part of a new quorum of `size` voters."""
    values: dict[str, Any] = {"is_bootstrap": True, "cluster_id": None, "new_cluster_id": "made"}
    draw = more.pop("draw", lambda bound: bound // 2)
    config = config_of(key(local_id), size, **(values | more))
    return Bench(config, StoredState(), log_of(), draw)


def first_batch(size: int = 3) -> tuple[tuple[int, Any], ...]:
    """The control records that the first leader writes, with their offsets."""
    voters = voter_set(*range(1, size + 1))
    change = LeaderChangeRecord(key(1), voters.keys, voters.keys)
    return ((0, change), (1, KRaftVersionRecord(1)), (2, VotersRecord(voters, CLUSTER)))
