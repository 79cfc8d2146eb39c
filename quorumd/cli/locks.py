"""`quorumctl locks` and `quorumctl unlock`: who holds locks and waits for them; a lock taken away."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from quorumd.cli.lock import name_argument
from quorumd.cli.options import (
    Target,
    output_option,
    quorum_options,
    run_async,
    timeout_option,
    to_ms,
)
from quorumd.cli.program import EXIT_FAILED
from quorumd.cli.text import aligned, duration_text, printable, to_json

if TYPE_CHECKING:
    from quorumd.client import Claimant, ClaimedName, ClaimKind

_COLUMNS: tuple[str, ...] = (
    *("NAME", "STATE", "TOKEN", "OWNER", "HOST", "PID", "SINCE", "TTL", "RENEWED", "COMMENT"),
)

_LOCKS_HELP = """Print who holds which lock, since when, and who waits for it.

\b
--output text    a line for each holder, and below it one for each who waits, in their order
--output json    one object per line; token is the holder's QUORUM_LOCK_TOKEN, written_ms the
                 time of the newest record, ms since 1970 by that host's clock; -1: not known

A holder that has died stands there until a waiting process takes the lock over, or the next one asks for it.
RENEWED says how long ago its newest record was written, by that host's clock and this one's.

\b
Examples:
  quorumctl locks
  quorumctl locks --prefix jobs/ --output json
  quorumctl locks --elections
"""

_UNLOCK_HELP = """Take a lock away from its holder.

Locks are given back by their holders; this is for operators who know that a holder must not go on.
Without --force it only names the holder. The holder notices as soon as it reads the log, and `quorumctl lock`
ends its command then, but the next one may have the lock a moment before. Nothing is written if the lock has
changed hands since it was shown.

On a terminal it asks; elsewhere --yes is needed.

\b
Exit code: 0 taken away, 1 nothing done: stderr says why.

\b
Examples:
  quorumctl unlock jobs/nightly
  quorumctl unlock --force jobs/nightly
"""


@click.command(help=_LOCKS_HELP, short_help="Print who holds locks and who waits.")
@quorum_options
@click.option("--prefix", metavar="TEXT", default="", help="The names that begin with this.")
@click.option("--elections", is_flag=True, help="Elections in place of locks.")
@click.option("--registrations", is_flag=True, help="Registrations in place of locks.")
@output_option("text", "json")
@timeout_option
def locks(
    target: Target,
    prefix: str,
    elections: bool,
    registrations: bool,
    output: str,
    timeout_s: float,
) -> None:
    """Reads the map once."""
    from quorumd.client import ClaimKind

    if elections and registrations:
        raise click.UsageError("give --elections or --registrations, not both.")
    kind = ClaimKind.LOCK
    if elections or registrations:
        kind = ClaimKind.ELECTION if elections else ClaimKind.REGISTRATION
    found = run_async(_claims(target, kind, prefix, to_ms(timeout_s)))
    if output == "json":
        for each in found:
            click.echo(to_json(_as_dict(each)))
    elif not found:
        click.echo(f"no {kind.value}", err=True)
    else:
        for line in aligned(_table(found)):
            click.echo(line)


@click.command(help=_UNLOCK_HELP, short_help="Take a lock away from its holder.")
@quorum_options
@name_argument
@click.option("--force", is_flag=True, help="Take it away.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@timeout_option
def unlock(target: Target, name: str, force: bool, yes: bool, timeout_s: float) -> int:
    """Returns the exit code."""
    from quorumd.client import ClaimKind

    timeout_ms = to_ms(timeout_s)
    claims = run_async(_claims(target, ClaimKind.LOCK, name, timeout_ms))
    holder = next((each.holder for each in claims if each.name == name), None)
    if holder is None:
        click.echo(f"nobody holds {name}: nothing done", err=True)
        return EXIT_FAILED
    whose = f"{name} is held by {_words(holder)}, token {holder.token}"
    if not force:
        click.echo(f"{whose}: nothing done", err=True)
        click.echo(f"End that process, or take the lock away: unlock --force {name}", err=True)
        return EXIT_FAILED
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"{whose}: nobody can be asked here, give --yes.")
        click.echo(f"{whose}. Its work may go on beside the next holder's.", err=True)
        if not click.confirm("Take it away?", err=True):
            click.echo("nothing done", err=True)
            return EXIT_FAILED
    if not run_async(_take_away(target, name, holder.token, timeout_ms)):
        click.echo(f"{name} has changed hands meanwhile: nothing done", err=True)
        return EXIT_FAILED
    click.echo(f"taken away: {name}, token {holder.token}")
    return 0


async def _claims(
    target: Target, kind: ClaimKind, prefix: str, timeout_ms: int
) -> list[ClaimedName]:
    from quorumd.client import list_claims

    async with target.client(timeout_ms) as client:
        return await list_claims(client, kind, prefix=prefix)


async def _take_away(target: Target, name: str, token: int, timeout_ms: int) -> bool:
    from quorumd.client import force_unlock

    async with target.client(timeout_ms) as client:
        return await force_unlock(client, name, token)


def _words(claimant: Claimant) -> str:
    comment = f" ({printable(claimant.comment)})" if claimant.comment else ""
    return (
        f"{printable(claimant.owner)} on {printable(claimant.host)}, pid {claimant.pid},"
        f" since {printable(claimant.since)}{comment}"
    )


def _table(found: list[ClaimedName]) -> list[tuple[str, ...]]:
    rows = [_COLUMNS]
    for each in found:
        if each.holder is not None:
            rows.append(_row(printable(each.name), "held", each.holder))
        rows += [_row(printable(each.name), "waits", waiter) for waiter in each.waiters]
    return rows


def _row(name: str, state: str, claimant: Claimant) -> tuple[str, ...]:
    is_held = claimant.token >= 0
    renewed = "at a time that is not known"
    if claimant.written_ms >= 0:
        renewed = f"{duration_text(max(0.0, time.time() - claimant.written_ms / 1000))} ago"
    return (
        name,
        state,
        str(claimant.token) if is_held else "",
        printable(claimant.owner),
        printable(claimant.host),
        str(claimant.pid),
        printable(claimant.since),
        duration_text(claimant.ttl_ms / 1000),
        renewed if is_held else "",
        printable(claimant.comment),
    )


def _as_dict(found: ClaimedName) -> dict[str, Any]:
    holder = None if found.holder is None else found.holder._asdict()
    waiters = [_without_token(each) for each in found.waiters]
    return {"name": found.name, "holder": holder, "waiters": waiters}


def _without_token(waiter: Claimant) -> dict[str, Any]:
    fields = waiter._asdict()
    del fields["token"]
    return fields
