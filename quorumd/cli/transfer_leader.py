"""`quorumctl transfer-leader`: another voter is to lead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorumd.cli.options import (
    Count,
    Target,
    output_option,
    quorum_options,
    run_async,
    timeout_option,
    to_ms,
)
from quorumd.cli.program import EXIT_FAILED
from quorumd.cli.text import to_json

if TYPE_CHECKING:
    from quorumd.client.admin import LeaderTransfer


_HELP = """Have the leader hand over to another voter, and wait until that one can commit.

For maintenance of the leader's host, or to lead from another site. Without --to the leader takes a voter
that is up to date. Producers wait meanwhile, usually for much less than a second, and lose nothing.

\b
Examples:
  quorumctl transfer-leader -b localhost:9093
  quorumctl transfer-leader --to 2

\b
Exit codes: 0 done, 1 failed, or another voter came to lead.
"""


@click.command("transfer-leader", help=_HELP, short_help="Have another voter lead.")
@quorum_options
@click.option(
    "--to",
    "to_id",
    type=Count(0, 2**31 - 1),
    metavar="N",
    help="The voter that leads next.",
)
@timeout_option
@output_option("text", "json")
def transfer_leader(target: Target, to_id: int | None, timeout_s: float, output: str) -> int:
    """Returns the exit code."""
    done = run_async(_transfer(target, to_id, to_ms(timeout_s)))
    is_wanted = done.leader_id == to_id if to_id is not None else done.leader_id != done.from_id
    if output == "json":
        click.echo(to_json({**done._asdict(), "to_id": to_id}))
    elif is_wanted:
        click.echo(_done_text(done))
    if not is_wanted:
        click.echo(f"Error: {_other_text(done, to_id)}", err=True)
    return 0 if is_wanted else EXIT_FAILED


def _done_text(done: LeaderTransfer) -> str:
    if done.leader_id == done.from_id:
        return f"{done.leader_id} leads already, in epoch {done.leader_epoch}."
    return (
        f"{done.leader_id} leads in place of {done.from_id}, in epoch {done.leader_epoch}, "
        f"after {done.took_ms} ms."
    )


def _other_text(done: LeaderTransfer, to_id: int | None) -> str:
    wanted = "" if to_id is None else f"not {to_id} but "
    again = " again" if done.leader_id == done.from_id else ""
    return (
        f"{wanted}{done.leader_id} came to lead{again}, in epoch {done.leader_epoch}, after "
        f"{done.took_ms} ms. `quorumctl describe --replication` shows who is up to date; then repeat it."
    )


async def _transfer(target: Target, to_id: int | None, timeout_ms: int) -> LeaderTransfer:

    async with target.admin(timeout_ms) as admin:
        return await admin.transfer_leader(to_id)
