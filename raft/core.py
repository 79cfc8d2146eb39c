"""The state that all rules share, and the few verbs that change it.

`Core` owns the durable triple (epoch, leader, vote), the view of the log, the role, the numbering of
writes and requests, and the list of effects of the current step. It decides nothing: the rules live in
the other modules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise

from quorumd.raft import quorum
from quorumd.raft.config import RaftConfig, StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import (
    AdoptClusterId,
    AnnounceHighWatermark,
    AnnounceRole,
    AnnounceVoters,
    CancelHeldRequests,
    DropSnapshot,
    Effect,
    FetchReply,
    Peer,
    PersistQuorumState,
    PersistRemoval,
    Reply,
    Report,
    Request,
    ResetLog,
    SendReply,
    SendRequest,
    TruncateLog,
    VoterChangeReply,
)
from quorumd.raft.electorate import Electorate
from quorumd.raft.errors import KafkaError
from quorumd.raft.invariants import CapturedState, require
from quorumd.raft.log_view import LogView, VoterEntry
from quorumd.raft.outstanding import Backoff, FailedDownload, InFlightRequest, SnapshotDownload
from quorumd.raft.roles import (
    ROLE_OF,
    Follower,
    Leader,
    Observer,
    Resigned,
    Role,
    State,
    Unattached,
)
from quorumd.raft.transitions import TRANSITIONS, Trigger
from quorumd.raft.types import Endpoint, ReplicaKey, SnapshotId, VoterSet


class Core:
    """See the module's docstring. `draw(n)` returns a random integer in [0, n)."""

    def __init__(
        self, config: RaftConfig, stored: StoredState, log: LogView, draw: Callable[[int], int]
    ) -> None:
        self.config = config
        self.local = config.local
        self.draw = draw
        self.log = log
        self.log.voter_entries.insert(
            0, VoterEntry(-1, VotersRecord(config.initial_voters, config.cluster_id))
        )
        self._electorate = Electorate.of(self.log.voter_entries[-1], config)
        self._has_bootstrapped = False
        self.now_ms = 0
        self.epoch = stored.epoch
        self.leader: ReplicaKey | None = stored.leader
        self.leader_endpoints: tuple[Endpoint, ...] = ()
        self.voted: ReplicaKey | None = stored.voted
        snapshot = log.snapshot
        self.committed_offset = max(
            stored.applied_offset, 0 if snapshot is None else snapshot.offset
        )
        self.recorded_offset = stored.applied_offset
        self.high_watermark: int | None = None
        self.cluster_id = config.cluster_id
        self.heard_cluster_id: str | None = None
        self.known_uuids: dict[int, ReplicaKey] = {}
        self.unreachable: set[int] = set()
        self.foreign_leader: dict[int, int] = {}
        self.download: SnapshotDownload | None = None
        self.useless_copy: FailedDownload | None = None
        self.election_attempts = 0
        self.is_shutting_down = False
        self.state: State = Observer()
        self.context = (self.epoch, self.leader)
        self.last_contact_ms: int | None = None
        self.leader_has_ended = False
        self.next_word_ms = 0
        """When the leader is told the next time where this replica is reached."""
        self.told_in: tuple[int, ReplicaKey | None] | None = None
        """Epoch and leader that know it."""
        self.was_removed = config.was_removed
        self.must_lead = False
        """This witness holds records that the others lack."""
        self.others_turn_until_ms: int | None = None
        """When this witness stops waiting for a voter that could win, None if none has shown up."""
        self.handed_over_at: int | None = None
        """Offset of the voter set under which this leader resigned for others to remove it."""
        self.obstacle: str | None = None
        """Why this replica cannot take over what its leader has, in words."""
        self.effects: list[Effect] = []
        self.last_write = 0
        self.completed_write = 0
        self.state_write = 0
        self.log_writes: deque[tuple[int, int]] = deque()
        self.last_request_id = 0
        self.in_flight: dict[int, InFlightRequest] = {}
        self.busy: set[tuple[Peer, type[Request]]] = set()
        self.backoffs: dict[tuple[Peer, type[Request]], Backoff] = {}

    # -- who is who

    @property
    def role(self) -> Role:
        return ROLE_OF[type(self.state)]

    @property
    def electorate(self) -> Electorate:
        """The latest voter set, committed or not, and this replica's place in it."""
        entry = self.log.voter_entries[-1]
        if entry is not self._electorate.entry:
            self._electorate = Electorate.of(entry, self.config)
        return self._electorate

    @property
    def voters(self) -> VoterSet:
        """The latest voter set, committed or not."""
        return self.log.voters

    @property
    def is_voter(self) -> bool:
        """True if this replica may campaign and counts for a majority.

        Before the log names the voters, that takes a directory formatted as part of a new quorum: two
        lost disks that come back empty must not elect each other. One that is being removed campaigns,
        without a vote of its own, until its removal is committed: perhaps only it has that record
        (Ongaro's dissertation, 4.2.2).
        """
        if self.log.voters_offset < 0 and not self.config.is_bootstrap:
            return False
        return self.electorate.has_local or (
            self.log.voters_offset >= self.committed_offset
            and self.committed_voters.offset >= 0
            and self.committed_voters.record.voters.find(self.local) is not None
        )

    @property
    def leader_id(self) -> int | None:
        return None if self.leader is None else self.leader.id

    @property
    def committed_voters(self) -> VoterEntry:
        """The latest voter set that is known to be committed; before the first, that of configuration."""
        entries = reversed(self.log.voter_entries)
        return next(entry for entry in entries if entry.offset < self.committed_offset)

    def is_local(self, key: ReplicaKey) -> bool:
        return self.local.matches(key)

    def other_voters(self) -> tuple[ReplicaKey, ...]:
        return self.electorate.others

    def key_of(self, replica_id: int) -> ReplicaKey:
        """The key of the only voter under this id; without uuid if that is not clear."""
        keys = [key for key in self.voters.keys if key.id == replica_id]
        return keys[0] if len(keys) == 1 else ReplicaKey(replica_id)

    def endpoints_of(self, replica_id: int) -> tuple[Endpoint, ...]:
        """Where a replica is reached, as far as voter set and leader hints tell."""
        if replica_id == self.leader_id and self.leader_endpoints:
            return self.leader_endpoints
        if replica_id == self.local.id:
            return self.config.endpoints
        return self.voters.endpoints_of(replica_id) or self.config.initial_voters.endpoints_of(
            replica_id
        )

    # -- effects

    def report(self, reason: str) -> None:
        self.effects.append(Report(reason=reason))

    def answer(self, reply_to: int, answer: Reply) -> None:
        """Answers leave once the quorum state that they speak of is on disk."""
        self.effects.append(SendReply(reply_to=reply_to, answer=answer, after=self.state_write))

    def next_write(self) -> int:
        self.last_write += 1
        return self.last_write

    def next_log_write(self) -> int:
        """The number of a write after which the log is synced up to its present end."""
        write = self.next_write()
        self.log_writes.append((write, self.log.end_offset))
        return write

    def complete_writes(self, write: int) -> bool:
        """Note that everything up to `write` is on disk. Returns True if the synced end moved."""
        assert write <= self.last_write, "a write completed that was never asked for"
        self.completed_write = max(self.completed_write, write)
        before = self.log.synced_end_offset
        while self.log_writes and self.log_writes[0][0] <= write:
            self.log.synced_end_offset = self.log_writes.popleft()[1]
        moved = self.log.synced_end_offset != before
        if moved:
            self._record_voter_set()
        return moved

    def persist(self) -> None:
        """Have the durable triple written; nothing that depends on it leaves before."""
        self.state_write = self.next_write()
        self.recorded_offset = max(
            self.recorded_offset, min(self.committed_offset, self.log.synced_end_offset)
        )
        self.effects.append(
            PersistQuorumState(
                write=self.state_write,
                epoch=self.epoch,
                leader=self.leader,
                voted=self.voted,
                applied_offset=self.recorded_offset,
            )
        )

    @property
    def kept_offset(self) -> int:
        """Everything below is known to be committed, now or when the state was written: it stays."""
        return max(self.committed_offset, self.recorded_offset)

    def refuse_to_drop(self, request: InFlightRequest, demand: str) -> None:
        """The leader demands what would drop committed records; `demand` completes "leader 2 ..."."""
        self.obstacle = (
            f"leader {self.leader} of epoch {self.epoch} {demand}, but everything below "
            f"{self.kept_offset} is committed: its log is not the one this replica knows. Nothing was "
            "dropped. Check whether the other voters lost their disks, and restore them from this "
            "replica."
        )
        self.report(self.obstacle)
        self.back_off(request)

    def truncate(self, end_offset: int) -> None:
        """Drop a diverging tail. A leader never truncates, nobody below what it knows committed."""
        require(not isinstance(self.state, Leader), "a leader truncates its log")
        require(
            end_offset >= self.kept_offset,
            f"truncation to {end_offset} below the committed offset {self.committed_offset}",
        )
        changed = self.log.truncate(end_offset)
        self.log_writes = deque((write, min(end, end_offset)) for write, end in self.log_writes)
        self.effects.append(TruncateLog(write=self.next_log_write(), end_offset=end_offset))
        if changed:
            self.follow_voter_set()

    def reset_log(self, snapshot: SnapshotId, voters: VotersRecord | None) -> None:
        """Go on behind a verified snapshot. A leader never does, nobody gives up what is committed."""
        require(not isinstance(self.state, Leader), "a leader resets its log")
        require(
            snapshot.offset >= self.kept_offset,
            f"snapshot {snapshot} ends below the committed offset {self.committed_offset}",
        )
        had_voted = self.committed_voters.record.voters.find(self.local) is not None
        self.log.reset(snapshot, voters)
        self.log_writes = deque((write, snapshot.offset) for write, _ in self.log_writes)
        self.effects.append(ResetLog(write=self.next_log_write(), snapshot=snapshot))
        self.follow_voter_set()
        self.commit(snapshot.offset)
        if had_voted and not self.electorate.has_local and not self.was_removed:
            self.was_removed = True
            self.effects.append(PersistRemoval())

    def drop_download(self) -> None:
        """Forget an unfinished copy of a snapshot, if there is one."""
        if self.download is not None:
            dropped = DropSnapshot(write=self.next_write(), snapshot=self.download.snapshot)
            self.effects.append(dropped)
            self.download = None

    # -- requests

    def send(self, to: Peer, request: Request, after: int) -> None:
        self.last_request_id += 1
        self.in_flight[self.last_request_id] = InFlightRequest(to, request)
        self.busy.add((to, type(request)))
        self.effects.append(
            SendRequest(request_id=self.last_request_id, to=to, request=request, after=after)
        )

    def can_send(self, to: Peer, kind: type[Request]) -> bool:
        """True if no such request to this peer is in flight and the peer is not backing off."""
        if (to, kind) in self.busy:
            return False
        if not self.backoffs:
            return True
        backoff = self.backoffs.get((to, kind))
        return backoff is None or backoff.retry_at_ms <= self.now_ms

    def take(self, request_id: int) -> InFlightRequest | None:
        """The request of an answer; None if it belongs to an epoch or leader that is gone."""
        request = self.in_flight.pop(request_id, None)
        if request is not None:
            self.busy.discard((request.to, type(request.request)))
        return request

    def back_off(self, request: InFlightRequest) -> None:
        """Wait before the next request of this kind to this peer, longer after each failure.

        Kinds wait apart: that a peer has no records to give must not keep a vote from being asked.
        """
        backoff = self.backoffs.setdefault((request.to, type(request.request)), Backoff())
        backoff.attempts += 1
        backoff.retry_at_ms = self.now_ms + quorum.backoff_ms(
            backoff.attempts, self.config.retry_backoff_ms, self.config.retry_backoff_max_ms
        )

    def forget_requests(self) -> None:
        """Answers to what was sent in another epoch or role are ignored from now on."""
        self.in_flight.clear()
        self.busy.clear()
        self.backoffs.clear()
        self.effects.append(CancelHeldRequests())

    # -- transitions

    def random_election_timeout_ms(self) -> int:
        """Fresh, uniform in [E, 2E), so that elections rarely collide (KIP-595)."""
        return self.config.election_timeout_ms + self.draw(self.config.election_timeout_ms)

    def move_to(self, trigger: Trigger, state: State) -> None:
        """Change the role. The table decides whether that is possible."""
        expected = TRANSITIONS.get((self.role, trigger))
        is_outside = self.role is not Role.OBSERVER and not self.is_voter
        if is_outside and expected in (Role.UNATTACHED, Role.FOLLOWER):
            expected = Role.OBSERVER
        require(
            expected is ROLE_OF[type(state)],
            f"no transition from {self.role} to {ROLE_OF[type(state)]}: {trigger}",
        )
        former = self.state
        if isinstance(former, Leader):
            self.high_watermark = self.committed_offset
        self.state = state
        if self.context != (self.epoch, self.leader):
            self.context = (self.epoch, self.leader)
            self.last_contact_ms = None
            self.leader_has_ended = False
            self.obstacle = None
            self.next_word_ms = 0
            self.must_lead = False
            self.others_turn_until_ms = None
            self.forget_requests()
        if isinstance(former, Leader):
            self._refuse_waiting(former)
        self.announce(trigger)

    def _refuse_waiting(self, former: Leader) -> None:
        """Whoever still waits for an answer of this leader is told that it leads no more."""
        for reply_to in former.parked:
            self.refuse_fetch(reply_to, KafkaError.NOT_LEADER_OR_FOLLOWER)
        waiting = [change.reply_to for change in former.changes]
        transfer = former.transfer
        if transfer is not None and transfer.reply_to is not None:
            waiting.append(transfer.reply_to)
        for reply_to in waiting:
            self.answer_change(
                reply_to,
                KafkaError.NOT_LEADER_OR_FOLLOWER,
                f"replica {self.local.id} stopped leading before this was committed: whether it will "
                "be is up to the next leader. Ask that one again, it is safe to repeat",
            )

    def answer_change(
        self, reply_to: int, error: KafkaError | None = None, message: str | None = None
    ) -> None:
        """Answer a request to change voters or leader."""
        self.answer(
            reply_to,
            VoterChangeReply(
                epoch=self.epoch,
                leader_id=self.leader_id,
                leader_endpoints=self.leader_endpoints_for_answers(),
                error=error,
                message=message,
            ),
        )

    def announce(self, reason: str) -> None:
        self.effects.append(
            AnnounceRole(
                role=self.role, epoch=self.epoch, leader_id=self.leader_id, reason=str(reason)
            )
        )

    def announce_voters(self) -> None:
        self.effects.append(AnnounceVoters(voters=self.voters))

    def refuse_fetch(
        self, reply_to: int, error: KafkaError | None, top_level_error: KafkaError | None = None
    ) -> None:
        """Answer a Fetch with an error; epoch and leader go along so that the asker can move on."""
        self.answer(
            reply_to,
            FetchReply(
                epoch=self.epoch,
                leader_id=self.leader_id,
                leader_endpoints=self.leader_endpoints_for_answers(),
                error=error,
                top_level_error=top_level_error,
            ),
        )

    def leader_endpoints_for_answers(self) -> tuple[Endpoint, ...]:
        return () if self.leader is None else self.endpoints_of(self.leader.id)

    @property
    def has_leader_contact(self) -> bool:
        """True if the leader answered a fetch lately and its process is not known to be gone.

        KIP-996: such a replica must not help to depose it. Judged at the moment of the request.
        """
        return (
            self.leader is not None
            and self.last_contact_ms is not None
            and not self.leader_has_ended
            and self.now_ms < self.last_contact_ms + self.config.fetch_timeout_ms
            and self.leader.id not in self.unreachable
        )

    def become_unattached(
        self, trigger: Trigger, epoch: int, timeout_ms: int | None = None
    ) -> None:
        """No leader of `epoch` is known: look for one; a voter does so until its election timeout."""
        if epoch != self.epoch:
            self.epoch, self.voted = epoch, None
        self.leader, self.leader_endpoints = None, ()
        self.persist()
        if self.is_voter:
            timeout = self.random_election_timeout_ms() if timeout_ms is None else timeout_ms
            self.move_to(trigger, Unattached(self.now_ms + timeout))
        else:
            self.move_to(trigger, Observer())

    def become_follower(
        self, trigger: Trigger, epoch: int, leader: ReplicaKey, endpoints: tuple[Endpoint, ...]
    ) -> None:
        """Fetch from `leader` from now on."""
        require(
            epoch > self.epoch or self.leader is None or self.leader.id == leader.id,
            f"two leaders in epoch {epoch}: {self.leader} and {leader}",
        )
        require(not self.is_local(leader), f"replica {self.local} follows itself")
        changed = (epoch, leader) != (self.epoch, self.leader)
        if epoch != self.epoch:
            self.epoch, self.voted = epoch, None
        self.leader, self.leader_endpoints = leader, endpoints
        self.election_attempts = 0
        if changed:
            self.persist()
        if self.is_voter:
            self.move_to(trigger, Follower(self.now_ms + self.config.fetch_timeout_ms))
        else:
            self.move_to(trigger, Observer())

    def follow_voter_set(self) -> None:
        """Take the role that the latest voter set gives this replica (KIP-856, internal listener)."""
        self.announce_voters()
        if self.leader is not None and self.leader.uuid is None:
            self.leader = self.key_of(self.leader.id)
            self.context = (self.epoch, self.leader)
        self._take_role()

    def _take_role(self) -> None:
        """That of a voter, or of an observer, by the latest voter set and what of it is committed."""
        if self.is_voter and isinstance(self.state, Observer):
            if self.leader is not None:
                fetch_deadline = self.now_ms + self.config.fetch_timeout_ms
                self.move_to(Trigger.JOINED_VOTERS_WITH_LEADER, Follower(fetch_deadline))
            else:
                deadline = self.now_ms + self.random_election_timeout_ms()
                self.move_to(Trigger.JOINED_VOTERS, Unattached(deadline))
        elif not self.is_voter and not isinstance(self.state, (Observer, Leader, Resigned)):
            self.move_to(Trigger.LEFT_VOTERS, Observer())

    # -- commitment

    def commit(self, offset: int) -> None:
        """Everything below `offset` is committed; a smaller offset than before changes nothing."""
        if self.high_watermark is not None and offset <= self.high_watermark:
            return
        if offset < self.committed_offset:
            return
        self.high_watermark = self.committed_offset = offset
        self.effects.append(AnnounceHighWatermark(offset=offset))
        if self.cluster_id is None:
            entry = self.log.voter_entries[-1]
            if 0 <= entry.offset < offset:
                self._adopt_cluster_id(entry.record.cluster_id)
        self._record_voter_set()

    def _record_voter_set(self) -> None:
        """Keep on disk that the latest voter set is committed, as soon as it is in this log's.

        That says for ever that bootstrapping is over.
        """
        named_at = self.log.voter_entries[-1].offset
        if not self.electorate.has_local:
            self._note_removal()
            self._take_role()
        if (
            self.recorded_offset
            <= named_at
            < min(self.committed_offset, self.log.synced_end_offset)
        ):
            self.persist()

    def _note_removal(self) -> None:
        """This replica voted by a committed set, and does not by the latest one, committed too."""
        if self.was_removed:
            return
        committed = [
            entry.record.voters.find(self.local) is not None
            for entry in self.log.voter_entries
            if 0 <= entry.offset < self.committed_offset
        ]
        if True in committed and self.log.voters_offset < self.committed_offset:
            self.was_removed = True
            self.effects.append(PersistRemoval())

    def _adopt_cluster_id(self, cluster_id: str | None) -> None:
        if self.cluster_id is None and cluster_id is not None:
            self.cluster_id = cluster_id
            self.effects.append(AdoptClusterId(cluster_id=cluster_id))

    @property
    def is_bootstrapping(self) -> bool:
        """True until it is known who the first voters are, for ever (KIP-856, bootstrapping).

        Known by id only, they are once the log's first set is committed: clients write nothing before, so
        that nothing can be lost to a set that not all voters know; and what they have written shows that it
        was. Named with storage ids, they are from
        the start, and the set is committed like anything else.
        """
        if self.log.voters_offset < 0:
            return True
        if not self._has_bootstrapped:
            self._has_bootstrapped = self._knows_first_voters()
        return not self._has_bootstrapped

    def _knows_first_voters(self) -> bool:
        logged = self.log.voter_entries[1:]
        initial = self.config.initial_voters
        return (
            logged[0].offset < self.committed_offset
            or self.log.has_data_behind(logged[0])
            or (len(initial) > 0 and not initial.is_by_id)
            or any(_is_change(*pair) for pair in pairwise(logged))
        )

    def snapshot(self) -> CapturedState:
        """The part of the state that the invariants speak of."""
        return CapturedState(
            role=self.role,
            epoch=self.epoch,
            leader=self.leader,
            voted=self.voted,
            local=self.local,
            is_voter=self.is_voter,
            log_start_offset=self.log.start_offset,
            log_end_offset=self.log.end_offset,
            synced_end_offset=self.log.synced_end_offset,
            last_epoch=self.log.last_epoch,
            committed_offset=self.committed_offset,
        )


def _is_change(former: VoterEntry, later: VoterEntry) -> bool:
    """True if a set follows a committed one. A first set that is replaced keeps ids, but not keys."""
    before, after = former.record.voters.keys, later.record.voters.keys
    return before == after or sorted(k.id for k in before) != sorted(k.id for k in after)
