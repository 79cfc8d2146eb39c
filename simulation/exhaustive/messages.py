"""Messages as values without ids: the places in them are seen from the sender.

A message says whether its request still waits for a response. A response that no request waits for is no
message: the core drops it unseen.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from quorumd.raft import effects as fx
from quorumd.raft import events as ev
from quorumd.raft.types import OffsetAndEpoch
from simulation.exhaustive.labels import (
    CLUSTER,
    SIZE,
    Labels,
    Place,
    endpoints_of,
    key_of,
    mirrored,
)

VOTE, PRE_VOTE, BEGIN, END, FETCH = range(5)
KIND_NAMES = ("Vote", "pre-vote", "BeginQuorumEpoch", "EndQuorumEpoch", "Fetch")
KINDS = len(KIND_NAMES)
SLOTS = KINDS * (SIZE - 1)
MAX_WAIT_MS = 500

Record = tuple[int, int]
"""(epoch, value); value 0 is a control record, n the n-th append of a client."""
Records = tuple[Record, ...]
Slot = int
"""One kind of request to or from one other replica: the core has at most one of each on the way."""


def slot_of(place: Place, kind: int) -> Slot:
    """The slot of this kind of request to or from the replica at `place`."""
    return (place - 1) * KINDS + kind


def place_and_kind(slot: Slot) -> tuple[Place, int]:
    """The inverse of `slot_of`."""
    return slot // KINDS + 1, slot % KINDS


class RequestBody(NamedTuple):
    """`offset` and `last_epoch` are the end of the sender's log, 0 where the kind has none.

    `high_watermark` is what the sender of a Fetch knows, -1 nothing.
    """

    epoch: int
    offset: int = 0
    last_epoch: int = 0
    high_watermark: int = -1


class ResponseBody(NamedTuple):
    """Fields of a response; those from `high_watermark` on are of a Fetch."""

    error: str | None
    top_level_error: str | None
    epoch: int
    leader: Place | None
    granted: bool = False
    high_watermark: int | None = None
    diverging: tuple[int, int] | None = None
    read_from: int | None = None
    read_to: int = 0
    records: Records = ()
    """Records from `read_from` on; empty until the response leaves."""


class Message(NamedTuple):
    """A request or response on its way to the replica at place `to`."""

    to: Place
    kind: int
    is_response: bool
    is_wanted: bool
    """False for a request whose sender has given it up."""
    body: RequestBody | ResponseBody


def seen_from(place: Place, viewer: Place) -> Place:
    """A place of one replica's view, in the view of the replica at `viewer`."""
    return (place - viewer) % SIZE


def mirrored_slot(slot: Slot) -> Slot:
    """The same slot in the circle seen from behind."""
    place, kind = place_and_kind(slot)
    return slot_of(mirrored(place), kind)


def mirrored_message(message: Message) -> Message:
    """The same message in the circle seen from behind."""
    body = message.body
    if isinstance(body, ResponseBody) and body.leader is not None:
        body = body._replace(leader=mirrored(body.leader))
    return message._replace(to=mirrored(message.to), body=body)


def kind_of(request: fx.Request) -> int:
    """The kind of a request: one of `VOTE` to `FETCH`."""
    match request:
        case fx.Vote(pre_vote=pre_vote):
            return PRE_VOTE if pre_vote else VOTE
        case fx.BeginQuorumEpoch():
            return BEGIN
        case fx.EndQuorumEpoch():
            return END
    return FETCH


# -- requests


def body_of(request: fx.Request) -> RequestBody:
    """Left out are the successors of an EndQuorumEpoch: only delays follow from them."""
    match request:
        case fx.Vote(epoch=epoch, last=last):
            return RequestBody(epoch, last.offset, last.epoch)
        case fx.Fetch(epoch=epoch, position=position):
            known = request.high_watermark
            assert known is not None, "replicas say what they know"
            return RequestBody(epoch, position.offset, position.epoch, known)
    assert isinstance(request, (fx.BeginQuorumEpoch, fx.EndQuorumEpoch)), (
        "voters do not change here"
    )
    return RequestBody(request.epoch)


def request_of(kind: int, body: RequestBody, local_id: int) -> fx.Request:
    """The inverse of `body_of`."""
    end = OffsetAndEpoch(body.offset, body.last_epoch)
    if kind in (VOTE, PRE_VOTE):
        return fx.Vote(epoch=body.epoch, last=end, pre_vote=kind == PRE_VOTE)
    if kind == BEGIN:
        return fx.BeginQuorumEpoch(epoch=body.epoch)
    if kind == END:
        return fx.EndQuorumEpoch(epoch=body.epoch, leader_id=local_id, successors=())
    return fx.Fetch(epoch=body.epoch, position=end, high_watermark=body.high_watermark)


def request_event(kind: int, body: RequestBody, sender: int, to: int, reply_to: int) -> ev.Event:
    """Event by which a request of replica `sender` enters the core of replica `to`."""
    base: dict[str, Any] = {"reply_to": reply_to, "cluster_id": CLUSTER, "epoch": body.epoch}
    end = OffsetAndEpoch(body.offset, body.last_epoch)
    if kind in (VOTE, PRE_VOTE):
        return ev.VoteRequestReceived(
            **base,
            voter=key_of(to),
            candidate=key_of(sender),
            last=end,
            pre_vote=kind == PRE_VOTE,
        )
    if kind == FETCH:
        return ev.FetchRequestReceived(
            **base,
            replica=key_of(sender),
            position=end,
            max_wait_ms=MAX_WAIT_MS,
            high_watermark=body.high_watermark,
        )
    base |= {"leader_id": sender, "endpoints": endpoints_of(sender)}
    if kind == BEGIN:
        return ev.BeginQuorumEpochRequestReceived(**base, voter=key_of(to))
    return ev.EndQuorumEpochRequestReceived(**base, successors=())


# -- responses


def response_body(reply: fx.Reply, labels: Labels) -> ResponseBody:
    """Endpoints are left out: they follow from the leader's id."""
    leader = labels.place_of_id(reply.leader_id)
    expected = () if reply.leader_id is None else endpoints_of(reply.leader_id)
    assert reply.leader_endpoints == expected, "a reply names the leader's endpoints"
    head = ResponseBody(reply.error, reply.top_level_error, reply.epoch, leader)
    match reply:
        case fx.VoteReply(granted=granted):
            return head._replace(granted=granted)
        case fx.FetchReply(diverging=diverging):
            return head._replace(
                high_watermark=reply.high_watermark,
                diverging=None if diverging is None else (diverging.offset, diverging.epoch),
                read_from=reply.read_from,
                read_to=reply.read_to if reply.read_from is not None else 0,
            )
    return head


def reply_of(kind: int, body: ResponseBody, labels: Labels) -> fx.Reply:
    """The inverse of `response_body`."""
    leader_id = None if body.leader is None else labels[body.leader]
    head: dict[str, Any] = {
        "epoch": body.epoch,
        "leader_id": leader_id,
        "leader_endpoints": () if leader_id is None else endpoints_of(leader_id),
        "error": body.error,
        "top_level_error": body.top_level_error,
    }
    if kind in (VOTE, PRE_VOTE):
        return fx.VoteReply(**head, granted=body.granted)
    if kind == FETCH:
        return fx.FetchReply(
            **head,
            high_watermark=body.high_watermark,
            log_start_offset=0,
            diverging=None if body.diverging is None else OffsetAndEpoch(*body.diverging),
            read_from=body.read_from,
            read_to=body.read_to,
        )
    return fx.Reply(**head)


def response_event(kind: int, body: ResponseBody, labels: Labels, request_id: int) -> ev.Event:
    """Event by which a response enters the core; `body` is in the view of its receiver."""
    if body.top_level_error is not None:
        return ev.RequestFailed(request_id=request_id, reason="refused", error=body.top_level_error)
    leader_id = None if body.leader is None else labels[body.leader]
    hint = ev.LeaderHint(
        epoch=body.epoch,
        leader_id=leader_id,
        endpoints=() if leader_id is None else endpoints_of(leader_id),
    )
    if kind in (VOTE, PRE_VOTE):
        return ev.VoteResponseReceived(
            request_id=request_id, error=body.error, hint=hint, granted=body.granted
        )
    if kind == BEGIN:
        return ev.BeginQuorumEpochResponseReceived(
            request_id=request_id, error=body.error, hint=hint
        )
    if kind == END:
        return ev.EndQuorumEpochResponseReceived(request_id=request_id, error=body.error, hint=hint)
    return ev.FetchResponseReceived(
        request_id=request_id,
        error=body.error,
        hint=hint,
        high_watermark=body.high_watermark,
        diverging=None if body.diverging is None else OffsetAndEpoch(*body.diverging),
        records=_fetched(body),
    )


def _fetched(body: ResponseBody) -> ev.FetchedRecords | None:
    if not body.records or body.read_from is None:
        return None
    assert body.read_from >= 2, "the record that names the voters is never fetched again"
    return ev.FetchedRecords(
        token=1,
        base_offset=body.read_from,
        end_offset=body.read_from + len(body.records),
        epochs=epoch_starts(body.records, body.read_from),
    )


def epoch_starts(records: Records, base: int = 0) -> tuple[tuple[int, int], ...]:
    """(epoch, first offset) of each run of records of one epoch."""
    starts: list[tuple[int, int]] = []
    for offset, (epoch, _) in enumerate(records, base):
        if not starts or starts[-1][0] != epoch:
            starts.append((epoch, offset))
    return tuple(starts)
