"""Display of a reassignment: its state, and a view of it that changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from quorumd.cli.text import (
    OUTAGE_OVER,
    aligned,
    duration_text,
    key_as_dict,
    printable,
    to_json,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quorumd.client.description import QuorumDescription
    from quorumd.client.replicas import Reassignment
    from quorumd.client.voter_changes import ChangeProgress, OnChangeProgress

_LINE_INTERVAL_S = 10.0


def state_lines(
    quorum: QuorumDescription, under_way: Reassignment, since_ms: int = -1
) -> list[str]:
    """The reassignment for people: a few facts, then a line for each replica that it is about.

    `since_ms` is how long ago the last step was, -1 if that is not known.
    """
    since = f", for {duration_text(since_ms / 1000)}" if since_ms >= 0 else ""
    waits_for = printable(under_way.waits_for) or "nothing"
    facts = [
        ("Target:", ", ".join(map(str, under_way.target))),
        ("Voters:", ", ".join(map(str, quorum.voter_ids))),
        ("Leader:", f"{quorum.leader_id}, epoch {quorum.leader_epoch}"),
        ("Next:", under_way.next_step),
        ("WaitsFor:", waits_for + since),
    ]
    rows = [("ReplicaId", "ReplicaUuid", "Lag", "Fetched", "Does"), *_rows(quorum, under_way)]
    return [*(f"{label:12}{value}" for label, value in facts), *aligned(rows)]


def _rows(quorum: QuorumDescription, under_way: Reassignment) -> Iterator[tuple[str, ...]]:
    from quorumd.cli.describe import uuid_cell
    from quorumd.client.replicas import age_text

    for voter in quorum.voters:
        does = "stays" if voter.key.id in under_way.target else "goes"
        fetched = "leads" if voter is quorum.leader else age_text(quorum.silent_ms(voter))
        lag = str(quorum.lag(voter))
        yield str(voter.key.id), uuid_cell(voter), lag, fetched, does
    for replica_id, state in under_way.adding:
        if state is None:
            yield str(replica_id), "-", "-", "does not fetch: is it started?", "comes"
        else:
            fetched = age_text(quorum.silent_ms(state))
            yield str(replica_id), uuid_cell(state), str(quorum.lag(state)), fetched, "comes"


def state_as_dict(quorum: QuorumDescription) -> dict[str, Any]:
    """The reassignment for programs; `target` is null if none is under way."""
    from quorumd.client.replicas import reassignment
    from quorumd.raft.types import ReplicaKey

    under_way = reassignment(quorum)
    result: dict[str, Any] = {
        "target": None,
        "voters": [key_as_dict(voter.key) for voter in quorum.voters],
        "leader_id": quorum.leader_id,
        "leader_epoch": quorum.leader_epoch,
    }
    if under_way is not None:
        result |= {
            "target": list(under_way.target),
            "coming": [
                {
                    **key_as_dict(ReplicaKey(replica_id) if state is None else state.key),
                    "lag": None if state is None else quorum.lag(state),
                }
                for replica_id, state in under_way.adding
            ],
            "going": sorted({key.id for key in under_way.removing}),
            "next": under_way.next_step,
            "waits_for": under_way.waits_for,
        }
    return result


@contextmanager
def shown_reassignment(is_json: bool) -> Iterator[OnChangeProgress]:
    """A view that changes on a terminal; else a line at each step, and now and then in between."""
    if is_json or not sys.stdout.isatty() or not sys.stderr.isatty():
        yield _Lines(is_json).show
        return
    from quorumd.cli.progress import changing_view

    with changing_view() as show:
        yield _Screen(show).show


class _Steps:
    """The time since the last step."""

    def __init__(self) -> None:
        self._seen: object = None
        self._since = time.monotonic()

    def has_moved(self, quorum: QuorumDescription) -> bool:
        seen = quorum.voter_ids, quorum.target_voters, quorum.leader_id
        if seen == self._seen:
            return False
        self._seen, self._since = seen, time.monotonic()
        return True

    @property
    def since_ms(self) -> int:
        return round((time.monotonic() - self._since) * 1000)


class _Lines:
    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self._steps = _Steps()
        self._due_at = 0.0
        self._is_lost = False

    def show(self, progress: ChangeProgress) -> None:
        quorum = progress.quorum
        if (quorum is None) != self._is_lost:
            self._is_lost = quorum is None
            text = printable(progress.waits_for) if quorum is None else OUTAGE_OVER
            click.echo(text, err=True)
        if quorum is None:
            return
        is_due = time.monotonic() >= self._due_at
        if not self._steps.has_moved(quorum) and not is_due:
            return
        self._due_at = time.monotonic() + _LINE_INTERVAL_S
        if self._is_json:
            click.echo(to_json(state_as_dict(quorum)))
            sys.stdout.flush()
            return
        from quorumd.client.replicas import reassignment

        under_way = reassignment(quorum)
        if under_way is not None:
            voters = ", ".join(map(str, quorum.voter_ids))
            target = ", ".join(map(str, under_way.target))
            click.echo(
                f"voters {voters}; target {target}; {quorum.leader_id} leads; next: "
                f"{under_way.next_step}; waits for: {printable(under_way.waits_for) or 'nothing'}"
            )
            sys.stdout.flush()


class _Screen:
    def __init__(self, show: Callable[[RenderableType], None]) -> None:
        self._show = show
        self._steps = _Steps()
        self._last: list[str] = []

    def show(self, progress: ChangeProgress) -> None:
        from rich.text import Text

        from quorumd.client.replicas import reassignment

        quorum = progress.quorum
        under_way = None if quorum is None else reassignment(quorum)
        if quorum is None or under_way is None:
            self._show(Text("\n".join([*self._last, printable(progress.waits_for)])))
            return
        self._steps.has_moved(quorum)
        self._last = state_lines(quorum, under_way, self._steps.since_ms)
        self._show(Text("\n".join([*self._last, "Ctrl-C ends the watch, not the reassignment"])))
