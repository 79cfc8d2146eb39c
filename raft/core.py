"""The state that all rules share, and the few verbs that change nothing but it.

`Core` holds epoch, leader and vote, the log as the rules see it, the role, numbered writes and requests, and
the effects of the current step. What a role needs to remember is in `roles`, what one feature needs in
`core_parts`. The rules are in the other modules: functions that take a core, and the event or the role that
they are about.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from quorumd.raft import quorum
from quorumd.raft.config import RaftConfig, StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.core_parts import (
    Backoff,
    BootstrapState,
    EndpointRegistration,
    FailedDownload,
    InFlightRequest,
    KafkaLogState,
    KnownLeader,
    PeerConnections,
    ReassignmentState,
    Requests,
    SnapshotDownload,
    WitnessState,
    Writes,
)
from quorumd.raft.effects import (
    AnnounceRole,
    AnnounceVoters,
    CancelHeldRequests,
    DropSnapshot,
    Effect,
    FetchReply,
    Peer,
    PersistQuorumState,
    Reply,
    ReplyFields,
    Report,
    Request,
    SendReply,
    SendRequest,
    VoterChangeReply,
)
from quorumd.raft.electorate import Electorate
from quorumd.raft.errors import KafkaError
from quorumd.raft.invariants import CapturedState
from quorumd.raft.log_view import LogView, VoterEntry
from quorumd.raft.roles import ROLE_OF, Observer, Role, State
from quorumd.raft.types import Endpoint, ReplicaKey, VoterSet


class Core:
    """See the module's docstring. `draw(n)` returns a random integer in [0, n)."""

    def __init__(
        self, config: RaftConfig, stored: StoredState, log: LogView, draw: Callable[[int], int]
    ) -> None:
        self.config = config
        self.local = config.local
        self.draw = draw
        self.now_ms = 0
        # The state of the replica: on disk, but for the role. These fields are no part of their own, because
        # every event reads epoch and leader.
        self.epoch = stored.epoch
        self.leader: ReplicaKey | None = stored.leader
        self.voted: ReplicaKey | None = stored.voted
        self.recorded_offset = stored.applied_offset
        """A committed offset (exclusive) that is on disk with the three: nothing below is truncated."""
        self.state: State = Observer()
        self.context = (self.epoch, self.leader)
        """Epoch and leader of the role; what was asked in another context is void."""
        self.known_leader = KnownLeader()
        self.election_attempts = 0
        """Campaigns in a row that failed."""
        self.is_shutting_down = False
        self.was_removed = config.was_removed
        # The log, and what is known to be committed of it.
        self.log = log
        self.log.voter_entries.insert(
            0, VoterEntry(-1, VotersRecord(config.initial_voters, config.cluster_id))
        )
        self._electorate = Electorate.of(self.log.voter_entries[-1], config)
        snapshot = log.snapshot
        self.committed_offset = max(
            stored.applied_offset, 0 if snapshot is None else snapshot.end_offset
        )
        self.high_watermark: int | None = None
        self.cluster_id = config.cluster_id
        self.problem: str | None = None
        """The reason why this replica cannot take over what its leader has, in words."""
        # Exchanges with other replicas, and with the disk.
        self.effects: list[Effect] = []
        """Of the step that is being made."""
        self.writes = Writes()
        self.is_disk_full = False
        """Records find no space."""
        self.requests = Requests()
        self.connections = PeerConnections()
        # Fields of one feature each.
        self.download: SnapshotDownload | None = None
        self.failed_download: FailedDownload | None = None
        self.bootstrap = BootstrapState()
        self.registration = EndpointRegistration()
        self.witness = WitnessState()
        self.kafka_log = KafkaLogState()
        self.reassignment = ReassignmentState()

    # -- replicas and voters

    @property
    def role(self) -> Role:
        """The kind of `state`."""
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
        (Ongaro's dissertation, 4.2.2). For the log of a Kafka quorum a witness only does: a leader
        writes. If that log names no voters (kraft.version 0), configuration does.
        """
        if self.config.is_kafka_log:
            return self.config.is_witness and self.electorate.has_local
        if self.log.voters_offset < 0 and not self.config.is_bootstrap:
            return False
        return self.electorate.has_local or (
            self.committed_voters.offset >= 0
            and self.committed_voters.record.voters.find(self.local) is not None
        )

    @property
    def leader_id(self) -> int | None:
        """Id of the leader of this epoch; None if it is not known."""
        return None if self.leader is None else self.leader.id

    @property
    def committed_voters(self) -> VoterEntry:
        """The latest voter set that is known to be committed; before the first, that of configuration."""
        entries = reversed(self.log.voter_entries)
        return next(entry for entry in entries if entry.offset < self.committed_offset)

    def is_local(self, key: ReplicaKey) -> bool:
        """True if this key, perhaps one without uuid, can be this replica's."""
        return self.local.id == key.id and self.local.matches(key)

    def other_voters(self) -> tuple[ReplicaKey, ...]:
        """Keys of the latest voter set without this replica."""
        return self.electorate.others

    def key_of(self, replica_id: int) -> ReplicaKey:
        """The key of the only other voter under this id; without uuid if that is not clear."""
        keys = [key for key in self.other_voters() if key.id == replica_id]
        return keys[0] if len(keys) == 1 else ReplicaKey(replica_id)

    def endpoints_of(self, replica: ReplicaKey) -> tuple[Endpoint, ...]:
        """Endpoints of a replica, as far as voter set and leader hints tell.

        A key under the own id that lacks the uuid means a rival.
        """
        if replica == self.leader and self.known_leader.endpoints:
            return self.known_leader.endpoints
        if replica == self.local:
            return self.config.endpoints
        named = (*self.voters, *self.config.initial_voters)
        found = (v for v in named if v.key.matches(replica) and not self.is_local(v.key))
        return next((voter.endpoints for voter in found if voter.endpoints), ())

    # -- effects

    def report(self, reason: str) -> None:
        """Have this written to the node's log: something was ignored or refused, or is wrong."""
        self.effects.append(Report(reason=reason))

    def complete_writes(self, write: int) -> bool:
        """Note that everything up to `write` is on disk. Returns True if the synced end moved."""
        writes, log = self.writes, self.log
        assert write <= writes.last, "a write completed that was never asked for"
        before = log.synced_end_offset
        waiting = writes.log
        while waiting and waiting[0][0] <= write:
            log.synced_end_offset = waiting.popleft()[1]
        return log.synced_end_offset != before

    def persist(self) -> None:
        """Have the durable triple written; nothing that depends on it leaves before."""
        self.writes.state = self.writes.next()
        self.writes.state_since_ms = self.now_ms
        self.recorded_offset = max(
            self.recorded_offset, min(self.committed_offset, self.log.synced_end_offset)
        )
        self.effects.append(
            PersistQuorumState(
                write=self.writes.state,
                epoch=self.epoch,
                leader=None if self._follows_unknown_rival else self.leader,
                voted=self.voted,
                applied_offset=self.recorded_offset,
            )
        )

    @property
    def _follows_unknown_rival(self) -> bool:
        """On disk, a leader with the own id and no storage id would be this replica."""
        return self.leader is not None and self.leader != self.local and self.is_local(self.leader)

    @property
    def kept_offset(self) -> int:
        """Everything below is known to be committed, now or when the state was written: it stays."""
        return max(self.committed_offset, self.recorded_offset)

    def drop_download(self) -> None:
        """Forget an unfinished copy of a snapshot, if there is one."""
        if self.download is not None:
            dropped = DropSnapshot(write=self.writes.next(), snapshot=self.download.snapshot)
            self.effects.append(dropped)
            self.download = None

    # -- requests

    def send(self, to: Peer, request: Request, after: int) -> None:
        """Send a request once write `after` is on disk. The caller has asked `can_send`."""
        requests = self.requests
        requests.last_id = request_id = requests.last_id + 1
        requests.in_flight[request_id] = InFlightRequest(to, request)
        self.effects.append(SendRequest(request_id, to, request, after))

    def can_send(self, to: Peer, kind: type[Request]) -> bool:
        """True if no such request to this peer is in flight and the peer is not backing off."""
        if self.requests.is_busy(to, kind):
            return False
        if not self.requests.backoffs:
            return True
        backoff = self.requests.backoffs.get((to, kind))
        return backoff is None or backoff.retry_at_ms <= self.now_ms

    def take(self, request_id: int) -> InFlightRequest | None:
        """The request of a response; None if it belongs to an epoch or leader that is gone."""
        return self.requests.in_flight.pop(request_id, None)

    def back_off(self, request: InFlightRequest) -> None:
        """Wait before the next request of this kind to this peer, longer after each failure.

        Kinds wait apart: that a peer has no records to give must not keep a vote from being asked.
        """
        backoff = self.requests.backoffs.setdefault((request.to, type(request.request)), Backoff())
        backoff.attempts += 1
        backoff.retry_at_ms = self.now_ms + quorum.backoff_ms(
            backoff.attempts, self.config.retry_backoff_ms, self.config.retry_backoff_max_ms
        )

    def forget_requests(self) -> None:
        """Responses to what was sent in another epoch or role are ignored from now on."""
        self.requests.in_flight.clear()
        self.requests.backoffs.clear()
        self.effects.append(CancelHeldRequests())

    # -- replies

    def reply(self, reply_to: int, reply: Reply) -> None:
        """Reply to a request; the reply leaves once the quorum state that it speaks of is on disk."""
        self.effects.append(SendReply(reply_to, reply, self.writes.state))

    def reply_to_change(
        self, reply_to: int, error: KafkaError | None = None, message: str | None = None
    ) -> None:
        """Reply to a request to change voters or leader."""
        self.reply(reply_to, VoterChangeReply(**self.reply_fields(error), message=message))

    def refuse_fetch(
        self, reply_to: int, error: KafkaError | None, top_level_error: KafkaError | None = None
    ) -> None:
        """Refuse a Fetch; epoch and leader go along so that the sender can find the leader."""
        self.reply(reply_to, FetchReply(**self.reply_fields(error, top_level_error)))

    def reply_fields(
        self, error: KafkaError | None, top_level_error: KafkaError | None = None
    ) -> ReplyFields:
        """Fields of every reply: epoch and leader as they are known here, and the errors."""
        return {
            "epoch": self.epoch,
            "leader_id": self.leader_id,
            "leader_endpoints": self.leader_endpoints_for_replies(),
            "error": error,
            "top_level_error": top_level_error,
        }

    def leader_endpoints_for_replies(self) -> tuple[Endpoint, ...]:
        """Endpoints of the leader, for replicas that ask this one; empty if it is not known."""
        return () if self.leader is None else self.endpoints_of(self.leader)

    # -- role and leader

    def random_election_timeout_ms(self) -> int:
        """Fresh, uniform in [E, 2E), so that elections rarely collide (KIP-595)."""
        return self.config.election_timeout_ms + self.draw(self.config.election_timeout_ms)

    def announce(self, reason: str) -> None:
        """Tell the node which role, epoch and leader there is now, and why."""
        self.effects.append(
            AnnounceRole(
                role=self.role, epoch=self.epoch, leader_id=self.leader_id, reason=str(reason)
            )
        )

    def announce_voters(self) -> None:
        """Tell the node that the latest voter set has changed."""
        self.effects.append(AnnounceVoters(voters=self.voters))

    @property
    def has_leader_contact(self) -> bool:
        """True if the leader responded to a fetch lately and its process is not known to be gone.

        KIP-996: such a replica must not help to depose it. Judged at the moment of the request.
        """
        known = self.known_leader
        return (
            self.leader is not None
            and known.last_contact_ms is not None
            and not known.has_refused
            and not known.has_ended
            and self.now_ms < known.last_contact_ms + self.config.leader_contact_ms
            and self.leader.id not in self.connections.unreachable
        )

    @property
    def is_led(self) -> bool:
        """True if no request of another replica may take this one out of its epoch.

        It has contact with the leader, or has just started and waits for the first response of the leader
        that it found on disk. Source: Ongaro's dissertation, 4.2.3 (disruptive servers).
        """
        return self.has_leader_contact or (
            self.now_ms < self.known_leader.expected_until_ms
            and self.leader is not None
            and self.leader.id not in self.connections.unreachable
        )

    # -- commitment

    @property
    def is_bootstrapping(self) -> bool:
        """True until the first voters are known, for ever (KIP-856, bootstrapping).

        Voters that configuration names by id alone are known once the log's first set is committed. Clients
        write nothing before, so that nothing can be lost to a set that not all voters know; what clients have
        written therefore shows that the set was committed. Voters that are named with storage ids are known
        from the start, and the set is committed like anything else.
        """
        if self.config.is_kafka_log:
            return False
        if self.log.voter_entries[-1].offset < 0:
            return True
        if self.bootstrap.first_voters_are_known:
            return False
        self.bootstrap.first_voters_are_known = self._knows_first_voters()
        return not self.bootstrap.first_voters_are_known

    def _knows_first_voters(self) -> bool:
        logged = self.log.voter_entries[1:]
        initial = self.config.initial_voters
        return (
            logged[0].offset < self.committed_offset
            or self.log.has_data_behind(logged[0])
            or (len(initial) > 0 and not initial.is_by_id)
            or any(_is_change(*pair) for pair in pairwise(logged))
        )

    def capture(self) -> CapturedState:
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
