"""`quorumctl add-voter`, `remove-voter` and `replace-voter`: one change of the voter set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quorumd.cli.options import (
    Count,
    Target,
    change_timeout_option,
    output_option,
    quorum_options,
    replica_options,
    to_endpoints,
    to_ms,
)
from quorumd.cli.text import key_as_dict, to_json
from quorumd.cli.wait_display import run_change, shown_while_waiting

if TYPE_CHECKING:
    from uuid import UUID

    from quorumd.client.admin import AddedVoter, QuorumAdmin, RemovedVoter, ReplacedVoter
    from quorumd.client.description import QuorumDescription
    from quorumd.raft.types import Endpoint, ReplicaKey

_SHOW_TIMEOUT_MS = 3_000
_MAY_GO_ON = "the leader may still do it. `quorumctl describe` shows what there is, and it is safe to repeat."

_ADD_HELP = """Make an observer a voter.

Start the new node first: formatted without --bootstrap, with quorum.bootstrap.servers naming nodes of this
quorum. The leader waits until the node has caught up, then adds it; the command returns when the change is
committed. It finds storage id and endpoints by itself if just one replica with that id fetches.

\b
Examples:
  quorumctl add-voter -b localhost:9093 --replica-id 4
  quorumctl add-voter --replica-id 4 --replica-uuid bFA-N2lESVuMQA4aDMOeYg
  quorumctl add-voter --replica-id 4 --endpoint CONTROLLER://db4.example.com:9093

It is safe to repeat: a voter stays a voter.
"""

_REMOVE_HELP = """Make a voter an observer, for good.

The node goes on as an observer; stop it afterwards if you retire it. If it leads, leadership moves to
another voter. Refused while too few of the remaining voters are up to commit, and where the last one beside
a witness is a Kafka controller; --force removes the voter nevertheless. The last voter cannot be removed.

\b
Examples:
  quorumctl remove-voter -b localhost:9093 --replica-id 3
  quorumctl remove-voter --replica-id 3 --replica-uuid bFA-N2lESVuMQA4aDMOeYg
"""

_REPLACE_HELP = """Give the vote of a lost disk to the new disk of the same node.

\b
1. stop node N, if it still runs
2. mount the new disk, `quorumd format --config FILE` without --bootstrap
3. start the node: it copies the log and observes
4. quorumctl replace-voter N

The command adds the new storage id, then removes the old one, each when it is safe. It can be interrupted and
repeated at any point.

\b
Examples:
  quorumctl replace-voter 3 -b localhost:9093
"""


@click.command("add-voter", help=_ADD_HELP, short_help="Make an observer a voter.")
@quorum_options
@replica_options
@click.option(
    "--endpoint",
    "endpoints",
    multiple=True,
    callback=to_endpoints,
    metavar="NAME://HOST:PORT",
    help="Its listener, if the leader does not know it; may be repeated.",
)
@change_timeout_option
@output_option("text", "json")
def add_voter(
    target: Target,
    replica_id: int,
    replica_uuid: UUID | None,
    endpoints: tuple[Endpoint, ...],
    timeout_s: float,
    output: str,
) -> None:
    """Adds a voter, and shows the voters then."""

    async def run() -> tuple[AddedVoter, QuorumDescription | None]:
        async with target.admin(to_ms(timeout_s)) as admin:
            with shown_while_waiting(f"adding {replica_id}") as on_progress:
                added = await admin.add_voter(
                    replica_id, replica_uuid, endpoints=endpoints, on_progress=on_progress
                )
            return added, await _voters_now(admin)

    added, quorum = run_change(run(), _MAY_GO_ON)
    text = f"{added.key} is a voter {'already' if added.was_voter else 'now'}."
    if quorum is not None:
        text += _beside(added.key, quorum)
    _show(output, text, {**key_as_dict(added.key), "was_voter": added.was_voter}, quorum)


@click.command("remove-voter", help=_REMOVE_HELP, short_help="Make a voter an observer.")
@quorum_options
@replica_options
@click.option(
    "--force", is_flag=True, help="Also if the remaining voters could commit nothing now."
)
@change_timeout_option
@output_option("text", "json")
def remove_voter(
    target: Target,
    replica_id: int,
    replica_uuid: UUID | None,
    force: bool,
    timeout_s: float,
    output: str,
) -> None:
    """Removes a voter, and shows the voters then."""

    async def run() -> tuple[RemovedVoter, QuorumDescription | None]:
        async with target.admin(to_ms(timeout_s)) as admin:
            with shown_while_waiting(f"removing {replica_id}") as on_progress:
                removed = await admin.remove_voter(
                    replica_id, replica_uuid, force=force, on_progress=on_progress
                )
            if removed.was_leader:
                note = f"{removed.key} was the leader: leadership moves to another voter"
                click.echo(note, err=True)
            return removed, await _voters_now(admin)

    removed, quorum = run_change(run(), _MAY_GO_ON)
    text = f"{removed.key} is no voter any more."
    _show(output, text, {**key_as_dict(removed.key), "was_leader": removed.was_leader}, quorum)


@click.command("replace-voter", help=_REPLACE_HELP, short_help="Replace the disk of a voter.")
@quorum_options
@click.argument("replica_id", type=Count(0, 2**31 - 1), metavar="N")
@change_timeout_option
@output_option("text", "json")
def replace_voter(target: Target, replica_id: int, timeout_s: float, output: str) -> None:
    """Adds the new storage id and removes the old one, and shows the voters then."""

    def show(step: AddedVoter | RemovedVoter) -> None:
        from quorumd.client.admin import AddedVoter

        is_added = isinstance(step, AddedVoter)
        text = f"1 of 2: {step.key} votes" if is_added else f"2 of 2: {step.key} is removed"
        click.echo(text, err=True)

    async def run() -> tuple[ReplacedVoter, QuorumDescription | None]:
        async with target.admin(to_ms(timeout_s)) as admin:
            with shown_while_waiting(f"replacing the disk of {replica_id}") as on_progress:
                replaced = await admin.replace_voter(
                    replica_id, on_progress=on_progress, on_step=show
                )
            return replaced, await _voters_now(admin)

    replaced, quorum = run_change(run(), _MAY_GO_ON)
    if replaced.old is None:
        text = f"{replaced.new} votes, and no other storage id under {replica_id}: nothing is left to do."
    else:
        text = f"{replaced.new} votes in place of {replaced.old}."
    old = None if replaced.old is None else key_as_dict(replaced.old)
    _show(output, text, {**key_as_dict(replaced.new), "replaced": old}, quorum)


async def _voters_now(admin: QuorumAdmin) -> QuorumDescription | None:
    """For output: None rather than an error, because the change itself is complete."""
    from quorumd.client.errors import QuorumError
    from quorumd.security.errors import CertificateProblem

    try:
        return await admin.describe(timeout_ms=_SHOW_TIMEOUT_MS)
    except (QuorumError, CertificateProblem):
        return None


def _beside(key: ReplicaKey, quorum: QuorumDescription) -> str:
    """Consequence of another voter under the id of this one; empty if there is none."""
    from quorumd.client.replicas import listed

    others = [it.key for it in quorum.voters if it.key.id == key.id and it.key != key]
    if not others:
        return ""
    count = len(quorum.voters)
    return (
        f"\nSo is {listed(others)}: there are two voters under the id {key.id}. {count} voters count, and a "
        f"majority is {count // 2 + 1} of them. Remove the old one: `quorumctl replace-voter {key.id}` "
        "does it."
    )


def _show(output: str, text: str, result: dict[str, Any], quorum: QuorumDescription | None) -> None:
    if output == "json":
        voters = None if quorum is None else [key_as_dict(voter.key) for voter in quorum.voters]
        leader_id = None if quorum is None else quorum.leader_id
        click.echo(to_json({**result, "voters": voters, "leader_id": leader_id}))
        return
    click.echo(text)
    if quorum is not None:
        keys = sorted((voter.key for voter in quorum.voters), key=lambda key: key.sort_key())
        ids = [key.id for key in keys]
        names = [str(key if ids.count(key.id) > 1 else key.id) for key in keys]
        click.echo(f"The voters are {', '.join(names)}; {quorum.leader_id} leads.")
