"""One replica of the scope, its disk and what waits for that disk, as a value; and what can happen to it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, TypeVar

from quorumd.raft import roles
from simulation.exhaustive.frozen import NodeValue, Traffic, freeze, thaw
from simulation.exhaustive.labels import Labels, Place, mirrored
from simulation.exhaustive.messages import (
    BEGIN,
    END,
    FETCH,
    VOTE,
    Message,
    Record,
    Records,
    RequestBody,
    ResponseBody,
    Slot,
    mirrored_slot,
    place_and_kind,
    slot_of,
)

CONTROL = 0
"""The value of a control record."""


class Stored(NamedTuple):
    """quorum-state.json."""

    epoch: int
    leader: Place | None
    voted: Place | None
    applied_offset: int


class Truncation(NamedTuple):
    """A truncation of the log that is not on disk yet."""

    end_offset: int


Write = Stored | Truncation | tuple[Record, ...]
"""A quorum state, a truncation, or records to append; they reach the disk in order."""


class Held(NamedTuple):
    """A request or response that waits for the write `after`, counted from the last that is on disk."""

    after: int
    is_response: bool
    slot: Slot
    body: RequestBody | ResponseBody


class Local(NamedTuple):
    """A replica: its rules' state, its disk, what is on the way to that disk and what waits for it."""

    node: NodeValue
    stored: Stored
    records: Records
    pending: tuple[Write, ...]
    groups: tuple[int, ...]
    """Numbers of pending writes that each event asked for; they reach the disk together."""
    held: tuple[Held, ...]
    granted: tuple[int, Place] | None
    """Epoch and place of the last vote that it granted, unless the disk has it; it survives crashes."""

    @property
    def log(self) -> Records:
        """The log in memory."""
        return written(self.stored, self.records, self.pending)[1]


class Delivery(NamedTuple):
    """A message arrives; it is in the view of its sender."""

    message: Message


class RequestFailure(NamedTuple):
    """The transport gives up waiting for the response to a request of this replica."""

    slot: Slot


class TimerKind(Enum):
    """The timers of a replica that can run out."""

    ELECTION = "election timer"
    CHECK_QUORUM = "check-quorum timer"
    BEGIN = "BeginQuorumEpoch timer"
    PARKED_FETCH = "wait of a parked fetch"
    RETRY = "retry backoff"


class Expiry(NamedTuple):
    """A timer runs out. `about` is the place of a voter, the index of a parked fetch, or a slot."""

    timer: TimerKind
    about: int = 0


class Sync(NamedTuple):
    """The pending writes of so many events, the oldest ones, reach the disk at once."""

    groups: int


class ClientAppend(NamedTuple):
    """A client appends a record with this value."""

    value: int


class Crash(NamedTuple):
    """The process dies and starts again. The first `kept` pending writes are on disk, and of those up to
    `states_kept` the quorum states and truncations, which do not wait for the sync of records."""

    kept: int
    states_kept: int


Happening = Delivery | RequestFailure | Expiry | Sync | ClientAppend | Crash


class Outcome(NamedTuple):
    """Result of a happening at a replica. Messages are in its view."""

    local: Local
    sent: tuple[Message, ...] = ()
    forgotten: tuple[Slot, ...] = ()
    """Requests whose responses it does not wait for any more, apart from one that completed just now."""
    committed: Records = ()
    """The longest prefix of the log that it said is committed."""
    elected_in: int = 0
    """The epoch that it won just now, or 0."""
    violation: str | None = None


def written(stored: Stored, records: Records, writes: tuple[Write, ...]) -> tuple[Stored, Records]:
    """The disk after these writes."""
    for write in writes:
        if isinstance(write, Stored):
            stored = write
        elif isinstance(write, Truncation):
            records = records[: write.end_offset]
        else:
            records += write
    return stored, records


def crashes(local: Local) -> Iterator[Crash]:
    """Every crash that leaves another disk behind."""
    seen = set()
    for kept in range(len(local.pending) + 1):
        for states_kept in range(kept, len(local.pending) + 1):
            crash = Crash(kept, states_kept)
            disk = disk_after(local, crash)
            if disk not in seen:
                seen.add(disk)
                yield crash


def disk_after(local: Local, crash: Crash) -> tuple[Stored, Records]:
    """Quorum state and records on disk after a crash."""
    late = local.pending[crash.kept : crash.states_kept]
    survivors = tuple(write for write in late if isinstance(write, (Stored, Truncation)))
    return written(local.stored, local.records, local.pending[: crash.kept] + survivors)


def timers(local: Local, traffic: Traffic) -> Iterator[Expiry]:
    """Every timer that runs; any of them may be the next one to run out.

    A fetch that is parked came lately: neither has its voter been silent for so long that it gets
    BeginQuorumEpoch again, nor has the quorum been lost. The backoff of BeginQuorumEpoch is over by its
    timer. Left out is the end of a wait that has brought nothing: the same fetch would come again.
    """
    value, end_offset = local.node, len(local.log)
    busy = {slot for slot, _ in value.in_flight}
    if value.role is roles.Role.LEADER:
        _, ends, parked = value.role_detail
        heard = {place for place, *_ in parked}
        if not heard and traffic.resignation:
            yield Expiry(TimerKind.CHECK_QUORUM)
        for place, _ in ends:
            if slot_of(place, BEGIN) not in busy and place not in heard:
                yield Expiry(TimerKind.BEGIN, place)
        for at, (_, _, offset, _, known) in enumerate(parked):
            if offset < end_offset or known < (value.high_watermark or -1):
                yield Expiry(TimerKind.PARKED_FETCH, at)
        return
    yield Expiry(TimerKind.ELECTION)
    for retry in value.retries:
        if not retry.is_over:
            yield Expiry(TimerKind.RETRY, slot_of(retry.place, retry.kind))


def give_up(local: Local, slot: Slot) -> Local:
    """The asker of this request has given it up: its response goes nowhere.

    A held response is dropped; a parked fetch stays, because the leader does not know.
    """
    held = tuple(item for item in local.held if not (item.is_response and item.slot == slot))
    node, (place, kind) = local.node, place_and_kind(slot)
    if node.role is roles.Role.LEADER and kind == FETCH:
        start, ends, parked = node.role_detail
        rows = tuple((row[0], row[1] and row[0] != place, *row[2:]) for row in parked)
        node = node._replace(role_detail=(start, ends, rows))
    return local._replace(held=held, node=node)


def mirrored_local(local: Local, traffic: Traffic) -> Local:
    """The same replica with its two neighbours in each other's place."""
    records = local.log
    ahead, behind = Labels(1, 2, 3), Labels(1, 3, 2)
    node = freeze(thaw(local.node, ahead, records, len(local.pending)), behind, records, 0, traffic)
    return local._replace(
        node=node,
        stored=_mirrored_write(local.stored),
        pending=tuple(_mirrored_write(write) for write in local.pending),
        held=tuple(sorted(_mirrored_held(held) for held in local.held)),
        granted=local.granted and (local.granted[0], mirrored(local.granted[1])),
    )


W = TypeVar("W", bound=Write)


def _mirrored_write(write: W) -> W:
    if isinstance(write, Stored):
        leader = None if write.leader is None else mirrored(write.leader)
        voted = None if write.voted is None else mirrored(write.voted)
        return write._replace(leader=leader, voted=voted)
    return write


def _mirrored_held(held: Held) -> Held:
    body = held.body
    if isinstance(body, ResponseBody) and body.leader is not None:
        body = body._replace(leader=mirrored(body.leader))
    return held._replace(slot=mirrored_slot(held.slot), body=body)


def is_void(message: Message, receiver: Local) -> bool:
    """True for a request that its sender has given up and that can change nothing any more.

    It is of an epoch that is over for good, by the receiver's disk, or asks for what that disk has settled
    for the whole epoch: its vote, or its leader.
    """
    stored, epoch = receiver.stored, message.body.epoch
    if message.is_wanted or epoch > stored.epoch:
        return False
    if epoch < stored.epoch:
        return True
    is_settled = stored.leader is not None
    if message.kind == END:
        return False
    if message.kind == FETCH:
        return is_settled and receiver.node.role is not roles.Role.LEADER
    return is_settled or (message.kind == VOTE and stored.voted is not None)


def is_empty(message: Message, receiver: Local) -> bool:
    """True for the response to a BeginQuorumEpoch that has no news for its leader, whenever it arrives."""
    body = message.body
    return (
        message.kind == BEGIN
        and isinstance(body, ResponseBody)
        and body.error is None
        and (
            body.epoch < receiver.node.epoch
            or (body.epoch, body.leader) == (receiver.node.epoch, message.to)
        )
    )


def owed(local: Local) -> tuple[Slot, ...]:
    """The requests of others whose responses they still wait for, and which this replica has."""
    slots = [held.slot for held in local.held if held.is_response]
    if local.node.role is roles.Role.LEADER:
        parked = local.node.role_detail[2]
        slots += [slot_of(place, FETCH) for place, is_wanted, *_ in parked if is_wanted]
    return tuple(slots)


def awaited(local: Local, traffic: Traffic) -> tuple[Slot, ...]:
    """The requests of this replica that have left, have no response yet and may have one."""
    node = local.node
    gone = {item.slot for item in local.held if not item.is_response}
    if not traffic.resignation:
        gone.update(slot_of(place, END) for place in (1, 2))
    if not traffic.discovery:
        leader = None if node.leader is None else slot_of(node.leader, FETCH)
        others = (slot_of(place, FETCH) for place in (1, 2))
        gone.update(slot for slot in others if slot != leader)
    return tuple(slot for slot, _ in node.in_flight if slot not in gone)
