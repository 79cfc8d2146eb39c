"""A way to a violation in words: each step with its replica, offsets and epochs."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.exhaustive.labels import SIZE, Labels, labels_at
from simulation.exhaustive.messages import (
    FETCH,
    KIND_NAMES,
    PRE_VOTE,
    VOTE,
    Message,
    ResponseBody,
    place_and_kind,
)
from simulation.exhaustive.replica import (
    ClientAppend,
    Crash,
    Delivery,
    Expiry,
    Happening,
    Local,
    RequestFailure,
    Stored,
    Sync,
    TimerKind,
    Truncation,
)
from simulation.exhaustive.search import Failed
from simulation.exhaustive.space import Space, State
from simulation.exhaustive.step import step


def lines(space: Space, failed: Failed) -> Iterator[str]:
    """The start, one numbered line for each action, and what is wrong at the end."""
    yield from (f"   {line}" for line in _start(space, failed.way[0][0]))
    for number, (state, (position, taken, lost)) in enumerate(failed.way, 1):
        labels = labels_at(position)
        if taken is None:
            assert lost is not None, "either a step or a loss"
            message = space.networks.messages[lost.number]
            sender = labels_at((position - message.to) % SIZE)
            yield f"{number:>2}. lost: {message_in_words(message, sender)}"
            continue
        local, notes = space.replicas.values[state[position]], list[str]()
        outcome = step(local, taken.happening, labels, space.scope.traffic, notes)
        notes += [f"sends {message_in_words(message, labels)}" for message in outcome.sent]
        yield f"{number:>2}. replica {labels.me}: {_in_words(taken.happening, local, labels)}"
        yield from (f"      {note}" for note in notes)
    yield f"    violated: {failed.text}"


def _start(space: Space, state: State) -> Iterator[str]:
    for position in range(SIZE):
        local, labels = space.replicas.values[state[position]], labels_at(position)
        yield (
            f"replica {labels.me} is {local.node.role} in epoch {local.node.epoch}, on disk "
            f"{list(local.records)}, {local.node.committed_offset} of them known to be committed"
        )


def _in_words(happening: Happening, local: Local, labels: Labels) -> str:
    match happening:
        case Delivery(message):
            sender = labels_at((labels.me - 1 - message.to) % SIZE)
            return f"gets {message_in_words(message, sender)}"
        case RequestFailure(slot):
            place, kind = place_and_kind(slot)
            return f"gives up its {KIND_NAMES[kind]} request to replica {labels[place]}"
        case Expiry(TimerKind.BEGIN, place):
            return f"{TimerKind.BEGIN.value} of replica {labels[place]} runs out"
        case Expiry(TimerKind.RETRY, slot):
            place, kind = place_and_kind(slot)
            return (
                f"{TimerKind.RETRY.value} of {KIND_NAMES[kind]} to replica {labels[place]} is over"
            )
        case Expiry(timer, _):
            return f"{timer.value} runs out"
        case Sync(groups):
            return f"reaches the disk: {'; '.join(_writes(local, groups, labels))}"
        case ClientAppend(value):
            return f"a client appends value {value}"
        case Crash(kept, states_kept):
            return (
                f"crashes and starts again; {kept} of {len(local.pending)} pending writes are on disk, "
                f"and the quorum states and truncations of the first {states_kept}"
            )


def _writes(local: Local, groups: int, labels: Labels) -> Iterator[str]:
    for write in local.pending[: sum(local.groups[:groups])]:
        if isinstance(write, Stored):
            leader = None if write.leader is None else labels[write.leader]
            voted = None if write.voted is None else labels[write.voted]
            yield f"epoch {write.epoch}, leader {leader}, vote {voted}"
        elif isinstance(write, Truncation):
            yield f"cut at {write.end_offset}"
        else:
            yield f"records {list(write)}"


def message_in_words(message: Message, labels: Labels) -> str:
    """`labels` are those of the sender."""
    kind, body = KIND_NAMES[message.kind], message.body
    route = f"from {labels.me} to {labels[message.to]}"
    if not isinstance(body, ResponseBody):
        end = ""
        if message.kind in (VOTE, PRE_VOTE, FETCH):
            end = f", log end {body.offset} of epoch {body.last_epoch}"
        given_up = "" if message.is_wanted else ", given up"
        return f"{kind} {route}: epoch {body.epoch}{end}{given_up}"
    leader = None if body.leader is None else labels[body.leader]
    parts = [f"epoch {body.epoch}", f"leader {leader}"]
    if message.kind in (VOTE, PRE_VOTE):
        parts.append("granted" if body.granted else "refused")
    if body.error or body.top_level_error:
        parts.append(body.error or body.top_level_error or "")
    if body.high_watermark is not None:
        parts.append(f"high watermark {body.high_watermark}")
    if body.diverging is not None:
        parts.append(f"diverging at {body.diverging[0]} of epoch {body.diverging[1]}")
    if body.records:
        parts.append(f"records {list(body.records)} from {body.read_from}")
    return f"response to {kind} {route}: {', '.join(parts)}"
