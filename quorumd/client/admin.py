"""`QuorumAdmin`: change the voters and the leader.

    async with QuorumAdmin("10.0.0.1:9093,10.0.0.2:9093") as admin:
        await admin.add_voter(4)
        await admin.transfer_leader(4)

The leader makes one change at a time and responds when it is committed. Every call is safe to repeat.
Source: KIP-856 (AddVoter, RemoveVoter, disk failure recovery), KIP-642 (reassignment).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar
from uuid import UUID

from quorumd.client.base import BaseClient
from quorumd.client.connection import CLIENT_ID_DEFAULT
from quorumd.client.description import QuorumDescription, ReplicaState
from quorumd.client.error_messages import LEADER_MOVED, explain
from quorumd.client.errors import (
    ChangeRefused,
    ChangeTimedOut,
    ConnectionFailed,
    QuorumUnavailable,
    ReplicaNotFound,
    error_code,
)
from quorumd.client.replicas import (
    DiskReplacement,
    Reassignment,
    check_survives,
    disk_replacement,
    joining_observer,
    leaving_voter,
    listed,
    only_voter,
    reassignment,
)
from quorumd.client.security import Security
from quorumd.client.timing import Deadline, RetryBackoff
from quorumd.client.voter_changes import (
    DESCRIBE_TIMEOUT_MS,
    POLL_S,
    AddVoterChange,
    ChangeClient,
    ChangeProgress,
    LeaderTransferChange,
    OnChangeProgress,
    QuorumChange,
    ReassignmentChange,
    RemoveVoterChange,
)
from quorumd.raft.types import Address, Endpoint, ReplicaKey
from quorumd.wire.error_codes import ErrorCode

ADMIN_TIMEOUT_MS_DEFAULT = 60_000
GRACE_MS = 5_000
"""Time to wait for a replica that has just been started, or that a new leader does not know yet."""

_NEW_LEADER_POLL_S = 0.01
_LAST_TRY_MS = 250
"""A try in a shorter time could only end with less to say than the one before."""
# Two descriptions give slightly different times for one and the same fetch.
_NEXT_FETCH_MS = 50

_ONLY_A_WITNESS = (
    "only {}, a witness, would vote then, and lead no Kafka quorum: nothing could be written any more, and "
    "no voter be added. Add another controller first; --force does it all the same"
)

T = TypeVar("T")


class AddedVoter(NamedTuple):
    """A replica that is a voter now; `was_voter`: it was one before the call."""

    key: ReplicaKey
    endpoints: tuple[Endpoint, ...]
    was_voter: bool


class RemovedVoter(NamedTuple):
    """A replica that is no voter any more; `was_leader`: another leader is elected."""

    key: ReplicaKey
    was_leader: bool


class ReplacedVoter(NamedTuple):
    """`new` is a voter; `old` is the key that was removed, None if it had been removed before."""

    new: ReplicaKey
    old: ReplicaKey | None


class LeaderTransfer(NamedTuple):
    """The old and the new leader, its epoch, and how long (ms) it took until it could commit.

    Both ids are the same, and `took_ms` is 0, if the voter was the leader already.
    """

    from_id: int
    leader_id: int
    leader_epoch: int
    took_ms: int


class QuorumAdmin(BaseClient):
    """Changes the voters and the leader of one quorum. `close` it, or use it in `async with`.

    The arguments are as for QuorumClient. Every call may raise QuorumUnavailable, CertificateProblem,
    NotSupported, ChangeRefused with the reason, and ChangeTimedOut with the condition that was not met.
    `on_progress` is called a few times a second with that condition. A replica is meant by its id and,
    where several have this id, by its storage id (`replica_uuid`).
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[Address],
        *,
        client_id: str = CLIENT_ID_DEFAULT,
        timeout_ms: int = ADMIN_TIMEOUT_MS_DEFAULT,
        security: Security | None = None,
    ) -> None:
        super().__init__(bootstrap_servers, timeout_ms, security)
        self._changes = ChangeClient(
            self._bootstrap, client_id=client_id, timeout_ms=self.timeout_ms, security=security
        )

    def close(self) -> None:
        """Closes all connections. The leader may still complete a change that was requested."""
        self._changes.close()

    async def describe(self, *, timeout_ms: int | None = None) -> QuorumDescription:
        """The leader's view of the quorum, never of an older epoch than before."""
        return await self._changes.describe(self._deadline(timeout_ms))

    async def add_voter(
        self,
        replica_id: int,
        replica_uuid: UUID | None = None,
        *,
        endpoints: Sequence[Endpoint] = (),
        timeout_ms: int | None = None,
        on_progress: OnChangeProgress | None = None,
    ) -> AddedVoter:
        """Makes an observer a voter, once it has caught up. Returns when that is committed.

        Storage id and endpoints may be left out if just one replica with the id fetches from the leader.
        Raises ReplicaNotFound if none does.
        """
        deadline = self._deadline(timeout_ms)
        goal = f"add {ReplicaKey(replica_id, replica_uuid)} to the voters"
        fetches = _NextFetches()

        def find(quorum: QuorumDescription) -> ReplicaState:
            try:
                found = joining_observer(quorum, goal, replica_id, replica_uuid)
            except ReplicaNotFound:
                if replica_uuid is None or not endpoints:
                    raise
                # All is known: the leader waits until it fetches.
                found = ReplicaState(key=ReplicaKey(replica_id, replica_uuid), log_end_offset=-1)
            if found in quorum.voters:
                if replica_uuid is None and not fetches.seen(quorum, found):
                    # The voter may have died a moment ago, and another one be meant, on a new disk.
                    raise ReplicaNotFound(goal, f"{found.key} has not fetched since this was asked")
                return found
            return _reachable(goal, replace(found, endpoints=tuple(endpoints) or found.endpoints))

        quorum, replica = await self._found(find, deadline, on_progress)
        if replica in quorum.voters and quorum.committed_voters is None:
            return AddedVoter(replica.key, replica.endpoints, was_voter=True)
        change = _addition(goal, quorum.cluster_id, replica)
        error = await self._add(change, deadline, on_progress)
        return AddedVoter(replica.key, replica.endpoints, was_voter=bool(error))

    async def remove_voter(
        self,
        replica_id: int,
        replica_uuid: UUID | None = None,
        *,
        force: bool = False,
        timeout_ms: int | None = None,
        on_progress: OnChangeProgress | None = None,
    ) -> RemovedVoter:
        """Makes a voter an observer. Returns when that is committed.

        Its storage id may be left out if it is the only voter with the id. Refused if no majority of the
        other voters fetches, and where only a witness of a Kafka quorum would be left, unless `force` is
        given.
        """
        deadline = self._deadline(timeout_ms)
        goal = f"remove {ReplicaKey(replica_id, replica_uuid)} from the voters"
        quorum = await self._changes.describe(deadline)
        voter = leaving_voter(quorum, goal, replica_id, replica_uuid)
        rest = [other for other in quorum.voters if other is not voter]
        if rest and not force:
            remedy = "Start them first, or remove one of those that are down; --force does it all the same"
            check_survives(quorum, goal, rest, remedy)
            if len(rest) == 1 and await self._changes.is_witness_beside_kafka(rest[0], deadline):
                raise ChangeRefused(goal, _ONLY_A_WITNESS.format(rest[0].key))
        change = RemoveVoterChange(
            goal=goal, key=voter.key, cluster_id=quorum.cluster_id, force=force
        )
        await self._changes.make(change, deadline, on_progress)
        return RemovedVoter(voter.key, was_leader=voter is quorum.leader)

    async def replace_voter(
        self,
        replica_id: int,
        *,
        timeout_ms: int | None = None,
        on_progress: OnChangeProgress | None = None,
        on_step: Callable[[AddedVoter | RemovedVoter], None] | None = None,
    ) -> ReplacedVoter:
        """Gives the vote of a lost disk to the new one under the same id (KIP-856).

        Adds (replica_id, new), which fetches, then removes (replica_id, old), which does not, and resumes
        where an earlier call ended. `on_step` is called with each completed step. Raises ReplicaNotFound
        if the replica with the new disk does not fetch, or the old one still does.
        """
        deadline = self._deadline(timeout_ms)
        goal = f"replace the disk of voter {replica_id}"

        fetches = _NextFetches()

        def find(quorum: QuorumDescription) -> DiskReplacement:
            found = disk_replacement(quorum, goal, replica_id)
            is_alive = fetches.seen(quorum, found.new)
            if found.old is None and not is_alive:
                # The voter may have died a moment ago, when its disk did.
                raise ReplicaNotFound(goal, f"{found.new.key} has not fetched since this was asked")
            if not found.is_added:
                _reachable(goal, found.new)
            return found

        quorum, (new, old, is_added) = await self._found(find, deadline, on_progress)
        if old is None:
            return ReplacedVoter(new.key, None)
        rest = [voter for voter in quorum.voters if voter not in (new, old)]
        for voters in ([*rest, old, new], [*rest, new]):
            check_survives(quorum, goal, voters, "Start the others first, then repeat this")
        if not is_added:
            await self._add(_addition(goal, quorum.cluster_id, new), deadline, on_progress)
            if on_step is not None:
                on_step(AddedVoter(new.key, new.endpoints, was_voter=False))
        removal = RemoveVoterChange(goal=goal, key=old.key, cluster_id=quorum.cluster_id)
        await self._changes.make(removal, deadline, on_progress)
        if on_step is not None:
            on_step(RemovedVoter(old.key, was_leader=False))
        return ReplacedVoter(new.key, old.key)

    async def reassign(
        self,
        voters: Iterable[int],
        *,
        timeout_ms: int | None = None,
        on_progress: OnChangeProgress | None = None,
    ) -> None:
        """Starts a reassignment to these voter ids, one change after the other (KIP-642).

        Returns when the target is committed: from then on the leader, also a later one, makes the changes.
        A reassignment in progress gets this target.
        """
        target = tuple(sorted(voters))
        goal = f"reassign the quorum to the voters {listed(target)}"
        change = ReassignmentChange(goal=goal, target=target)
        await self._changes.make(change, self._deadline(timeout_ms), on_progress)

    async def cancel_reassignment(self, *, timeout_ms: int | None = None) -> QuorumDescription:
        """Ends the reassignment in progress. Returns the quorum with the voters that remain.

        Raises QuorumUnavailable also if it is ended, and nobody says in time which ones these are.
        """
        deadline = self._deadline(timeout_ms)
        goal = "cancel the reassignment"
        quorum = await self._changes.describe(deadline)
        if quorum.target_voters is None:
            raise ChangeRefused(goal, "none is under way")
        change = ReassignmentChange(goal=goal, target=None)
        await self._changes.make(change, deadline)
        return await self._changes.describe(Deadline(max(deadline.remaining_ms(), _LAST_TRY_MS)))

    async def reassignment(self) -> Reassignment | None:
        """The reassignment in progress, None if there is none."""
        return reassignment(await self.describe())

    async def wait_for_reassignment(
        self,
        target: Iterable[int] | None = None,
        *,
        timeout_ms: int | None = None,
        on_progress: OnChangeProgress | None = None,
    ) -> QuorumDescription:
        """The quorum, once no reassignment (or, if given, none to `target`) is in progress any more.

        Without `timeout_ms` it waits for ever, also while no leader can be reached. Raises ChangeTimedOut.
        """
        wanted = None if target is None else tuple(sorted(target))
        deadline = None if timeout_ms is None else self._deadline(timeout_ms)
        waits_for = ""
        while True:
            limit_ms = DESCRIBE_TIMEOUT_MS
            if deadline is not None:
                limit_ms = min(limit_ms, max(deadline.remaining_ms(), _LAST_TRY_MS))
            try:
                quorum = await self._changes.describe(Deadline(limit_ms))
            except QuorumUnavailable as error:
                waits_for = error.summary
                progress = ChangeProgress(quorum=None, waits_for=waits_for)
            else:
                if quorum.target_voters is None or wanted not in (None, quorum.target_voters):
                    return quorum
                under_way = reassignment(quorum)
                assert under_way is not None, "there is a target"
                waits_for = under_way.waits_for
                progress = ChangeProgress(
                    quorum=quorum, waits_for=waits_for, waiting_ms=under_way.waiting_ms
                )
            if on_progress is not None:
                on_progress(progress)
            if deadline is not None and deadline.has_passed:
                raise ChangeTimedOut("finish the reassignment", deadline.timeout_ms, waits_for)
            await asyncio.sleep(POLL_S)

    async def transfer_leader(
        self, to_id: int | None = None, *, timeout_ms: int | None = None
    ) -> LeaderTransfer:
        """Transfers leadership to this voter, or to any that is caught up.

        Returns when another leader can commit: normally `to_id`, another voter if that one lost the
        election.
        """
        deadline = self._deadline(timeout_ms)
        goal = "hand leadership over" if to_id is None else f"hand leadership to {to_id}"
        before = await self._changes.describe(deadline)
        if to_id == before.leader_id:
            return LeaderTransfer(to_id, to_id, before.leader_epoch, 0)
        to = None if to_id is None else only_voter(before, goal, to_id).key
        started = time.monotonic()
        change = LeaderTransferChange(goal=goal, cluster_id=before.cluster_id, to=to)
        agreed_in = await self._hand_over(change, before, to_id, deadline)
        while True:
            now = await self._changes.describe(deadline)
            is_wanted = now.leader_id == to_id and now.leader_epoch > before.leader_epoch
            if (is_wanted or now.leader_epoch > agreed_in) and now.high_watermark >= 0:
                took_ms = round((time.monotonic() - started) * 1000)
                return LeaderTransfer(before.leader_id, now.leader_id, now.leader_epoch, took_ms)
            if deadline.has_passed:
                waits_for = "no new leader has committed anything yet"
                raise ChangeTimedOut(goal, deadline.timeout_ms, waits_for)
            await asyncio.sleep(_NEW_LEADER_POLL_S)

    async def _hand_over(
        self, change: QuorumChange, before: QuorumDescription, to_id: int | None, deadline: Deadline
    ) -> int:
        """Sends the request until a leader accepts it, or leadership has moved; the epoch that ends."""
        backoff = RetryBackoff()
        while True:
            try:
                reply = await self._changes.send_once(change, deadline)
            except ConnectionFailed:
                # The leader may have handed over and stopped.
                pass
            else:
                error = error_code(reply.code)
                if not error:
                    return max(reply.epoch, before.leader_epoch)
                reason = reply.message or explain(error)
                if error is ErrorCode.REQUEST_TIMED_OUT:
                    # While a leader hands over, no append succeeds: it gets no second try.
                    raise ChangeTimedOut(change.goal, deadline.timeout_ms, reason)
                if error not in LEADER_MOVED:
                    raise ChangeRefused(change.goal, reason, error)
            now = await self._changes.describe(deadline)
            if now.leader_id == to_id or (to_id is None and now.leader_id != before.leader_id):
                return before.leader_epoch
            await self._changes.pause(change, deadline, backoff)

    async def _add(
        self,
        change: AddVoterChange,
        deadline: Deadline,
        on_progress: OnChangeProgress | None,
    ) -> ErrorCode:
        """Adds a voter. The leader refuses that while it counts another storage id under the id as alive.

        One that has just been lost is waited for; one that still fetches is not.
        """
        fetches = _NextFetches()
        while True:
            try:
                return await self._changes.make(change, deadline, on_progress)
            except ChangeRefused as error:
                try:
                    quorum = await self._changes.describe(deadline)
                except QuorumUnavailable:
                    # The time is up: the leader's own reason says more.
                    raise error from None
                same_id = [each for each in quorum.voters if each.key.id == change.key.id]
                rivals = [each for each in same_id if each.key != change.key]
                is_permanent = error.error is not ErrorCode.INVALID_REQUEST or not rivals
                if is_permanent or any(fetches.seen(quorum, each) for each in rivals):
                    raise
                _report(on_progress, quorum, str(error))
                if deadline.remaining_s() <= 2 * POLL_S:
                    # A try in so short a time could only end with less to say.
                    raise
            await asyncio.sleep(POLL_S)

    async def _found(
        self,
        find: Callable[[QuorumDescription], T],
        deadline: Deadline,
        on_progress: OnChangeProgress | None,
    ) -> tuple[QuorumDescription, T]:
        """The result of `find` on a description; ReplicaNotFound only after the grace period."""
        grace = Deadline(min(GRACE_MS, deadline.remaining_ms()))
        problem: ReplicaNotFound | None = None
        while True:
            try:
                quorum = await self._changes.describe(deadline)
            except QuorumUnavailable as error:
                raise problem or error from None
            try:
                return quorum, find(quorum)
            except ReplicaNotFound as error:
                if grace.has_passed:
                    raise
                problem = error
                _report(on_progress, quorum, error.brief)
            await asyncio.sleep(min(POLL_S, grace.remaining_s()))


class _NextFetches:
    """Distinguishes replicas that fetch from those that did so before they died."""

    def __init__(self) -> None:
        self._first_ms: dict[ReplicaKey, int] = {}

    def seen(self, quorum: QuorumDescription, replica: ReplicaState) -> bool:
        """True for the leader, and if the replica lives and has fetched since `seen` first got it."""
        fetched_ms = replica.last_fetch_timestamp_ms
        first_ms = self._first_ms.setdefault(replica.key, fetched_ms)
        is_leader = quorum.leader is not None and quorum.leader.key == replica.key
        has_fetched = fetched_ms >= first_ms + _NEXT_FETCH_MS
        return is_leader or (has_fetched and quorum.is_alive(replica))


def _addition(goal: str, cluster_id: str, replica: ReplicaState) -> AddVoterChange:
    return AddVoterChange(
        goal=goal, key=replica.key, cluster_id=cluster_id, endpoints=replica.endpoints
    )


def _reachable(goal: str, replica: ReplicaState) -> ReplicaState:
    if replica.endpoints:
        return replica
    raise ReplicaNotFound(
        goal,
        f"{replica.key} has not registered its listeners at the leader",
        "Name its listeners: --endpoint NAME://host:port",
    )


def _report(
    on_progress: OnChangeProgress | None, quorum: QuorumDescription, waits_for: str
) -> None:
    if on_progress is not None:
        on_progress(ChangeProgress(quorum=quorum, waits_for=waits_for))
