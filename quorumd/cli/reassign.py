"""`quorumctl reassign`: move the quorum to other voters, one change after the other, and watch it.

Source: KIP-642.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from quorumd.cli.options import (
    CHANGE_TIMEOUT_S_DEFAULT,
    TIMEOUT,
    Target,
    output_option,
    quorum_options,
    run_async,
    to_ms,
)
from quorumd.cli.program import EXIT_FAILED
from quorumd.cli.reassign_view import shown_reassignment, state_as_dict, state_lines
from quorumd.cli.text import to_json
from quorumd.cli.wait_display import run_change, shown_while_waiting

if TYPE_CHECKING:
    from quorumd.client.description import QuorumDescription

_ID = re.compile(r"[0-9]{1,10}")
_NONE = "no reassignment is under way"
_GOES_ON = (
    "the reassignment goes on. `quorumctl reassign --watch` looks again, `quorumctl reassign --cancel` "
    "ends it."
)
_MAY_GO_ON = "the leader may have taken the target. `quorumctl reassign` shows whether it has."

_HELP = """Move the quorum to other voters, or show the progress of that.

Start the new nodes first, formatted without --bootstrap: they copy the log and observe. Then name the ids
of the final voters. The leader adds and removes voters one after the other, each new one once it has
caught up, itself last. The quorum serves meanwhile. A new leader goes on with the reassignment.

Without --voters and --cancel the command shows the pending reassignment.

\b
Examples:
  quorumctl reassign -b localhost:9093 --voters 4,5,6 --watch
  quorumctl reassign
  quorumctl reassign --watch
  quorumctl reassign --cancel             the present voters stay
  quorumctl reassign --voters 1,2,3       back again

\b
Exit codes: 0 done, 1 failed, or the target was not reached, 130 the watch was interrupted; the
reassignment goes on then.
"""


def _to_ids(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if not all(_ID.fullmatch(part) and int(part) < 2**31 for part in parts):
        raise click.BadParameter(f"{value!r} is no list of ids: expected numbers, such as 4,5,6")
    ids = tuple(sorted(map(int, parts)))
    if len(set(ids)) < len(ids):
        raise click.BadParameter(f"{value!r} names an id twice")
    return ids


@click.command(help=_HELP, short_help="Move the quorum to other voters.")
@quorum_options
@click.option("--voters", callback=_to_ids, metavar="N,...", help="Ids of the new voters.")
@click.option("--cancel", is_flag=True, help="Cancel; the present voters stay.")
@click.option("--watch", is_flag=True, help="Show progress until all is done.")
@click.option(
    "--timeout",
    "timeout_s",
    type=TIMEOUT,
    metavar="SECONDS",
    help=f"How long to wait: {CHANGE_TIMEOUT_S_DEFAULT:g} until the leader has taken it; --watch waits "
    "for ever without it.",
)
@output_option("text", "json")
def reassign(
    target: Target,
    voters: tuple[int, ...] | None,
    cancel: bool,
    watch: bool,
    timeout_s: float | None,
    output: str,
) -> int:
    """Returns the exit code."""
    if cancel and (voters is not None or watch):
        raise click.UsageError("--cancel goes with neither --voters nor --watch.")
    is_json = output == "json"
    timeout_ms = to_ms(CHANGE_TIMEOUT_S_DEFAULT if timeout_s is None else timeout_s)
    if cancel:
        quorum = run_async(_cancel(target, timeout_ms))
        _show_end(quorum, "cancelled", is_json)
        return 0
    if voters is None and not watch:
        _show_state(run_async(_describe(target, timeout_ms)), is_json)
        return 0
    if voters is not None:
        before = run_change(_start(target, voters, timeout_ms), _MAY_GO_ON)
        if not watch:
            _show_state(before, is_json, voters)
            return 0
    watching = _watch(target, voters, None if timeout_s is None else timeout_ms, is_json)
    quorum = run_change(watching, _GOES_ON)
    if quorum.target_voters is not None:
        other = ", ".join(map(str, quorum.target_voters))
        click.echo(f"Error: another target was set: {other}", err=True)
        return EXIT_FAILED
    if voters is not None and quorum.voter_ids != voters:
        _show_end(quorum, "the target was not reached: the reassignment was cancelled", is_json)
        return EXIT_FAILED
    _show_end(quorum, "done" if voters is not None else _NONE, is_json)
    return 0


async def _describe(target: Target, timeout_ms: int) -> QuorumDescription:
    async with target.admin(timeout_ms) as admin:
        return await admin.describe()


async def _cancel(target: Target, timeout_ms: int) -> QuorumDescription:
    async with target.admin(timeout_ms) as admin:
        return await admin.cancel_reassignment()


async def _start(target: Target, voters: tuple[int, ...], timeout_ms: int) -> QuorumDescription:
    async with target.admin(timeout_ms) as admin:
        with shown_while_waiting("setting the target") as on_progress:
            await admin.reassign(voters, on_progress=on_progress)
        quorum = await admin.describe()
    from quorumd.client.replicas import reassignment

    under_way = reassignment(quorum)
    for replica_id, state in () if under_way is None else under_way.adding:
        if state is None or not quorum.is_alive(state):
            text = f"note: replica {replica_id} does not fetch from the leader yet. Is it started?"
            click.echo(text, err=True)
    return quorum


async def _watch(
    target: Target,
    voters: tuple[int, ...] | None,
    timeout_ms: int | None,
    is_json: bool,
) -> QuorumDescription:
    async with target.admin(to_ms(CHANGE_TIMEOUT_S_DEFAULT)) as admin:
        with shown_reassignment(is_json) as on_progress:
            return await admin.wait_for_reassignment(
                voters, timeout_ms=timeout_ms, on_progress=on_progress
            )


# --- what is under way


def _show_state(
    quorum: QuorumDescription, is_json: bool, wanted: tuple[int, ...] | None = None
) -> None:
    from quorumd.client.replicas import reassignment

    under_way = reassignment(quorum)
    if is_json:
        click.echo(to_json(state_as_dict(quorum)))
    elif under_way is not None:
        for line in state_lines(quorum, under_way):
            click.echo(line)
    else:
        _show_end(quorum, "done" if wanted == quorum.voter_ids else _NONE, is_json=False)


def _show_end(quorum: QuorumDescription, text: str, is_json: bool) -> None:
    if is_json:
        click.echo(to_json(state_as_dict(quorum)))
        return
    ids = ", ".join(map(str, quorum.voter_ids))
    click.echo(f"{text}. The voters are {ids}; {quorum.leader_id} leads.")
