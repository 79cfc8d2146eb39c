"""Lets something happen to a replica, on the real `RaftNode` under the real `Driver`.

`step` depends on nothing but its arguments, so that a replica in the same state need not take the same
step twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from quorumd.raft import effects as fx
from quorumd.raft import events as ev
from quorumd.raft import roles
from quorumd.raft.config import StoredState
from quorumd.raft.core_parts import InFlightRequest
from quorumd.raft.invariants import InvariantViolation, check_state, require
from quorumd.raft.log_view import LogView
from quorumd.raft.node import RaftNode
from quorumd.raft.types import SnapshotId
from quorumd.server.partition.driver import Driver
from simulation.exhaustive.frozen import (
    NOW_MS,
    STALE_REPLIES,
    Traffic,
    draw,
    freeze,
    request_slot,
    thaw,
)
from simulation.exhaustive.labels import CONFIGS, VOTERS_ENTRY, Labels, Place
from simulation.exhaustive.messages import (
    BEGIN,
    END,
    FETCH,
    PRE_VOTE,
    VOTE,
    Message,
    Records,
    RequestBody,
    ResponseBody,
    Slot,
    body_of,
    epoch_starts,
    kind_of,
    place_and_kind,
    reply_of,
    request_event,
    request_of,
    response_body,
    response_event,
    seen_from,
    slot_of,
)
from simulation.exhaustive.replica import (
    CONTROL,
    ClientAppend,
    Delivery,
    Expiry,
    Happening,
    Held,
    Local,
    Outcome,
    RequestFailure,
    Stored,
    Sync,
    TimerKind,
    Truncation,
    Write,
    written,
)

NO_SNAPSHOTS = "there are no snapshots in this scope"
NEW_STALE_REPLY = 2 * STALE_REPLIES
PRE_VOTE_ID = 0
"""Of the request whose response stands for all pre-votes."""


@dataclass
class Host:
    """Surroundings of a driver: a disk, a network, a listener."""

    labels: Labels
    traffic: Traffic
    stored: Stored
    disk: Records
    pending: tuple[Write, ...]
    groups: tuple[int, ...]
    log: Records
    granted: tuple[int, Place] | None
    completed: int = 0
    now_ms: int = NOW_MS
    fetched: Records = ()
    value: int = 0
    sent: list[fx.SendRequest | Message] = field(default_factory=list)
    committed: int = 0
    elected_in: int = 0
    notes: list[str] | None = None
    node: RaftNode = field(init=False)
    driver: Driver = field(init=False)

    @staticmethod
    def of(local: Local, labels: Labels, traffic: Traffic) -> Host:
        """A replica in this state, with the ids of `labels`."""
        disk = (local.stored, local.records, local.pending, local.groups)
        host = Host(labels, traffic, *disk, local.log, local.granted)
        host.node = thaw(local.node, labels, host.log, len(local.pending))
        host._drive()
        for held in local.held:
            host.driver._held.append(host._thaw_held(held))
        return host

    def start(self) -> None:
        """Start a process on what the disk holds."""
        key = self.labels.key
        stored = StoredState(
            epoch=self.stored.epoch,
            leader=key(self.stored.leader),
            voted=key(self.stored.voted),
            applied_offset=self.stored.applied_offset,
        )
        end = len(self.disk)
        log = LogView(0, end, end, list(epoch_starts(self.disk)), [VOTERS_ENTRY])
        self.node = RaftNode(CONFIGS[self.labels.me], stored, log, draw)
        self._drive()
        self.driver.start()

    def _drive(self) -> None:
        self.driver = Driver(
            self.node,
            self,
            self._send_request,
            self._send_reply,
            self,
            self,
            lambda: self.now_ms,
        )

    # -- what happens

    def let(self, happening: Happening) -> int | None:
        """Let this happen. Returns the id of the request that it completes."""
        match happening:
            case Delivery(message):
                return self._deliver(message)
            case RequestFailure(slot):
                self.driver.handle(ev.RequestFailed(request_id=slot + 1, reason="no response"))
                return slot + 1
            case Expiry(timer, about):
                self._expire(timer, about)
                self.driver.handle(ev.TimerFired())
                if not self.traffic.pre_votes and self.node.role is roles.Role.PROSPECTIVE:
                    self._grant_pre_vote()
            case Sync(groups):
                writes = sum(self.groups[:groups])
                self.groups = self.groups[groups:]
                for write in self.pending[:writes]:
                    self._to_disk(write)
                self.completed = writes
                self.driver.on_writes_completed(writes)
            case ClientAppend(value):
                self.value = value
                self.driver.handle(ev.AppendRequested(1, 1))
        return None

    def _deliver(self, message: Message) -> int | None:
        labels, kind, body = self.labels, message.kind, message.body
        sender = seen_from(0, message.to)
        slot = slot_of(sender, kind)
        if isinstance(body, ResponseBody):
            leader = None if body.leader is None else seen_from(body.leader, message.to)
            self.fetched = body.records
            event = response_event(kind, body._replace(leader=leader), labels, slot + 1)
            self.driver.handle(event)
            return slot + 1
        reply_to = slot + 1 if message.is_wanted else NEW_STALE_REPLY
        self.driver.handle(request_event(kind, body, labels[sender], labels.me, reply_to))
        if not self.traffic.pre_votes:
            self._confirm(sender, body.epoch, leads=kind in (BEGIN, END))
        return None

    def _confirm(self, sender: Place, epoch: int, *, leads: bool) -> None:
        """Let the sender of a request be heard at once, if it was asked for what it knows."""
        for request_id, asked in list(self.node.core.requests.in_flight.items()):
            if kind_of(asked.request) == PRE_VOTE:
                leader_id = self.labels[sender] if leads else None
                hint = ev.LeaderHint(epoch=epoch, leader_id=leader_id)
                self.driver.handle(
                    ev.VoteResponseReceived(
                        request_id=request_id, error=None, hint=hint, granted=False
                    )
                )

    def _grant_pre_vote(self) -> None:
        """Let the others' pre-votes be there at once; a candidate has won them."""
        node, voter = self.node, self.labels.key(1)
        assert voter is not None
        asked = fx.Vote(epoch=node.epoch, last=node.core.log.end, pre_vote=True)
        node.core.requests.in_flight[PRE_VOTE_ID] = InFlightRequest(voter, asked)
        hint = ev.LeaderHint(epoch=node.epoch)
        self.driver.handle(
            ev.VoteResponseReceived(request_id=PRE_VOTE_ID, error=None, hint=hint, granted=True)
        )
        assert node.role is roles.Role.CANDIDATE, "two of three are a majority"

    def _expire(self, timer: TimerKind, about: int) -> None:
        """Put the clock to the moment at which this timer, and no other one, runs out."""
        node, state = self.node, self.node.core.state
        self.now_ms = now = NOW_MS + 1
        if timer is TimerKind.RETRY:
            place, kind = place_and_kind(about)
            peer = self.labels.key(place)
            assert peer is not None
            node.core.requests.backoffs[
                peer, type(request_of(kind, RequestBody(0), 0))
            ].retry_at_ms = now
            return
        match state:
            case roles.Leader() as leader if timer is TimerKind.CHECK_QUORUM:
                leader.check_quorum_deadline_ms = now
            case roles.Leader() as leader if timer is TimerKind.BEGIN:
                voter = self.labels.key(about)
                assert voter is not None
                leader.next_begin_ms = leader.progress[voter].begin_due_ms = now
                node.core.requests.backoffs.pop((voter, fx.BeginQuorumEpoch), None)
            case roles.Leader() as leader:
                list(leader.parked.values())[about].due_ms = now
                leader.fetch_due_ms = now
            case roles.Follower() as follower if follower.campaign_at_ms is None:
                follower.fetch_deadline_ms, node.core.known_leader.last_contact_ms = now, None
            case roles.Follower() as follower:
                follower.campaign_at_ms = now
            case roles.Unattached() | roles.Resigned():
                state.election_deadline_ms = now
            case roles.Prospective() | roles.Candidate():
                state.deadline_ms = now

    # -- records and state, as `quorumd.server.partition.driver.Records`

    def _write(self, write: Write, number: int) -> None:
        self.pending += (write,)
        assert number == len(self.pending), "writes are numbered one by one"
        if isinstance(write, Stored):
            return
        _, self.log = written(self.stored, self.log, (write,))

    def _to_disk(self, write: Write) -> None:
        old = self.stored
        self.stored, self.disk = written(old, self.disk, (write,))
        new = self.stored
        require(new.epoch >= old.epoch, f"epoch on disk went back: {old.epoch} to {new.epoch}")
        require(
            new.epoch > old.epoch or new.leader is not None or old.voted in (None, new.voted),
            f"vote on disk changed in epoch {new.epoch}",
        )

    def append_control(self, effect: fx.AppendControl) -> None:
        self._append(
            effect.base_offset, ((effect.epoch, CONTROL),) * len(effect.records), effect.write
        )

    def append_client(self, effect: fx.AppendClient) -> None:
        self._append(effect.base_offset, ((effect.epoch, self.value),), effect.write)

    def append_fetched(self, effect: fx.AppendFetched) -> None:
        self._append(effect.base_offset, self.fetched, effect.write)

    def _append(self, base: int, records: Records, number: int) -> None:
        require(base == len(self.log), "an append leaves a gap or overwrites")
        self._note(f"appends {records} at {base}")
        self._write(records, number)

    def truncate(self, effect: fx.TruncateLog) -> None:
        self._note(f"cuts its log from {len(self.log)} to {effect.end_offset}")
        self._write(Truncation(effect.end_offset), effect.write)

    def store_chunk(self, effect: fx.StoreSnapshotChunk) -> None:
        raise AssertionError(NO_SNAPSHOTS)

    def drop_chunks(self, effect: fx.DropSnapshot) -> None:
        raise AssertionError(NO_SNAPSHOTS)

    def reset(self, effect: fx.ResetLog) -> None:
        raise AssertionError(NO_SNAPSHOTS)

    def delete_prefix(self, effect: fx.DeleteLogPrefix) -> None:
        raise AssertionError(NO_SNAPSHOTS)

    def on_snapshot_copied(self, snapshot: SnapshotId) -> None:
        raise AssertionError(NO_SNAPSHOTS)

    def persist(self, effect: fx.PersistQuorumState) -> None:
        place = self.labels.place
        leader, voted = effect.leader, effect.voted
        self._note(
            f"writes epoch {effect.epoch}, leader {leader.id if leader else None}, "
            f"vote {voted.id if voted else None}"
        )
        kept = None if leader is not None else voted
        stored = Stored(effect.epoch, place(leader), place(kept), effect.applied_offset)
        self._write(stored, effect.write)

    def flush(self) -> None:
        """The writes of this event are a group; the disk begins when a `Sync` happens."""
        size = len(self.pending) - self.completed - sum(self.groups)
        if size:
            self.groups += (size,)

    # -- the network

    def _send_request(self, effect: fx.SendRequest) -> None:
        kind, traffic = kind_of(effect.request), self.traffic
        is_left_out = (
            (kind == PRE_VOTE and not traffic.pre_votes)
            or (kind == END and not traffic.resignation)
            or (kind == FETCH and not traffic.discovery and effect.to != self.node.leader)
        )
        if not is_left_out:
            self.sent.append(effect)

    def _send_reply(self, effect: fx.SendReply) -> None:
        reply_to, reply = effect.reply_to, effect.reply
        if reply_to >= STALE_REPLIES:
            return
        place, kind = place_and_kind(reply_to - 1)
        body = response_body(reply, self.labels)
        if body.read_from is not None:
            if body.read_from > len(self.log):
                return  # the log was truncated while the response waited: the connection is closed
            body = body._replace(records=self.log[body.read_from : body.read_to])
        if kind == VOTE and body.granted:
            self._grant(body.epoch, place)
        self.sent.append(Message(place, kind, True, True, body))

    def _grant(self, epoch: int, place: Place) -> None:
        """A vote leaves this replica for good."""
        known = self.granted
        if known is None:
            known = self._settled_vote()
        if known is not None:
            require(
                known[0] < epoch or known == (epoch, place),
                f"two votes in epoch {epoch}: for {self.labels[known[1]]} and {self.labels[place]}",
            )
        self.granted = (epoch, place)

    def _settled_vote(self) -> tuple[int, Place] | None:
        """The epoch on disk, and for whom alone this replica can have voted in it.

        With a leader on disk that is the leader; a vote for itself gave nothing away.
        """
        stored = self.stored
        voted = stored.voted if stored.leader is None else stored.leader
        return None if voted is None else (stored.epoch, voted)

    # -- notifications, as `Listener` and `Timer` of `quorumd.server.partition.driver`

    def on_high_watermark(self, effect: fx.AnnounceHighWatermark) -> None:
        offset = effect.offset
        require(offset <= len(self.log), "committed beyond the end of the log")
        self.committed = max(self.committed, offset)
        self._note(f"knows {offset} records to be committed")

    def on_role(self, effect: fx.AnnounceRole) -> None:
        self._note(f"is {effect.role} in epoch {effect.epoch}: {effect.reason}")
        if effect.role is roles.Role.LEADER:
            self.elected_in = effect.epoch

    def on_voters(self, effect: fx.AnnounceVoters) -> None:
        raise AssertionError("the voters never change")

    def on_cluster_id(self, cluster_id: str) -> None:
        raise AssertionError("the cluster id is known from the start")

    def on_removed(self) -> None:
        raise AssertionError("voters do not change here")

    def on_report(self, reason: str) -> None:
        self._note(reason)

    def on_halt(self, reason: str) -> None:
        raise InvariantViolation(f"the replica halts: {reason}")

    def set(self, deadline_ms: int) -> None:
        """Timers run out when an `Expiry` happens."""

    def _note(self, text: str) -> None:
        if self.notes is not None:
            self.notes.append(text)

    # -- the end of a step

    def check(self) -> None:
        """Checks this replica by itself; notes its vote for itself once it counts."""
        node = self.node
        check_state(node.core.capture())
        require(node.epoch >= self.stored.epoch, "the epoch is below the one on disk")
        log = node.core.log
        is_same = log.end_offset == len(self.log) and tuple(log.epoch_starts) == epoch_starts(
            self.log
        )
        require(is_same, "the rules' view of the log is not what was written")
        state = node.core.state
        if isinstance(state, roles.Candidate) and node.local in state.votes:
            self._grant(node.epoch, 0)
        require(
            node.leader is None or node.core.voted in (None, node.local, node.leader),
            f"replica {node.local} follows {node.leader} in epoch {node.epoch}, "
            f"but voted for {node.core.voted}",
        )

    def outcome(self, asked: dict[int, Slot], completed: int | None) -> Outcome:
        """The replica as a value again. `asked` are the slots of the requests before the step."""
        labels, in_flight = self.labels, self.node.core.requests.in_flight
        sent = []
        for item in self.sent:
            if isinstance(item, fx.SendRequest):
                place, kind = place_and_kind(request_slot(item, labels))
                is_wanted = item.request_id in in_flight
                item = Message(place, kind, False, is_wanted, body_of(item.request))
            sent.append(item)
        gone = sorted(slot for i, slot in asked.items() if i not in in_flight and i != completed)
        granted = self.granted
        if granted is not None and granted[0] <= self.stored.epoch:
            is_over = granted[0] < self.stored.epoch or self.stored.leader is not None
            if is_over or granted == self._settled_vote():
                granted = None  # the disk remembers the vote, or that its epoch is over
        local = Local(
            node=freeze(self.node, labels, self.log, self.completed, self.traffic),
            stored=self.stored,
            records=self.disk,
            pending=self.pending[self.completed :],
            groups=self.groups,
            held=tuple(sorted(self._frozen_held())),
            granted=granted,
        )
        committed = self.log[: self.committed]
        return Outcome(local, _ordered(sent), tuple(gone), committed, self.elected_in)

    def _frozen_held(self) -> Iterator[Held]:
        for effect in self.driver._held:
            after = effect.after - self.completed
            if isinstance(effect, fx.SendRequest):
                assert effect.request_id in self.node.core.requests.in_flight, (
                    "given up, but not dropped"
                )
                slot = request_slot(effect, self.labels)
                yield Held(after, False, slot, body_of(effect.request))
            elif isinstance(effect, fx.VerifySnapshot):
                raise AssertionError(NO_SNAPSHOTS)
            elif effect.reply_to < STALE_REPLIES:
                yield Held(
                    after, True, effect.reply_to - 1, response_body(effect.reply, self.labels)
                )

    def _thaw_held(self, held: Held) -> fx.SendRequest | fx.SendReply:
        place, kind = place_and_kind(held.slot)
        if isinstance(held.body, ResponseBody):
            reply = reply_of(kind, held.body, self.labels)
            return fx.SendReply(reply_to=held.slot + 1, reply=reply, after=held.after)
        to = self.labels.key(place)
        assert to is not None
        request = request_of(kind, held.body, self.labels.me)
        return fx.SendRequest(request_id=held.slot + 1, to=to, request=request, after=held.after)


def _ordered(messages: list[Message]) -> tuple[Message, ...]:
    """In an order that does not depend on ids, so that it says nothing about the order of sending."""
    return tuple(sorted(messages, key=repr))
