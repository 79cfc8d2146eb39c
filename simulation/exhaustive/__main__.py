"""`python -m simulation.exhaustive`: explore a scope; exit 1 with the shortest way to a violation."""

from __future__ import annotations

import sys

import click
from rich.console import Console

from simulation.exhaustive.frozen import Traffic
from simulation.exhaustive.render import lines
from simulation.exhaustive.scope import Scope
from simulation.exhaustive.search import Count, explore


@click.command(help=__doc__)
@click.option(
    "--epochs",
    type=click.IntRange(1, 4),
    default=2,
    show_default=True,
    help="Epochs that can have a leader.",
)
@click.option(
    "--appends", type=click.IntRange(0, 7), default=1, show_default=True, help="Appends of clients."
)
@click.option(
    "--in-flight",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Messages in flight at a time.",
)
@click.option(
    "--losses",
    type=click.IntRange(0, 7),
    default=2,
    show_default=True,
    help="Messages that get lost.",
)
@click.option(
    "--crashes",
    type=click.IntRange(0, 3),
    default=1,
    show_default=True,
    help="Crashes with a restart.",
)
@click.option("--leader/--no-leader", default=True, help="Whether there is a leader at the start.")
@click.option("--pre-votes", is_flag=True, help="Explore pre-votes instead of granting them all.")
@click.option("--discovery", is_flag=True, help="Let Fetch find the leader, too.")
@click.option("--resignation", is_flag=True, help="Let leaders resign and send EndQuorumEpoch.")
def main(
    epochs: int,
    appends: int,
    in_flight: int,
    losses: int,
    crashes: int,
    leader: bool,
    pre_votes: bool,
    discovery: bool,
    resignation: bool,
) -> None:
    traffic = Traffic(pre_votes, discovery, resignation)
    scope = Scope(epochs, appends, in_flight, losses, crashes, leader, traffic)
    console = Console(stderr=True)
    with console.status("exploring") as status:
        space, count, failed = explore(scope, lambda count: status.update(in_words(count)))
    click.echo(in_words(count))
    if failed is None:
        click.echo("complete: every property holds in every state")
        return
    for line in lines(space, failed):
        click.echo(line)
    sys.exit(1)


def in_words(count: Count) -> str:
    """One line."""
    return (
        f"{count.states} states, {count.transitions} transitions, depth {count.depth}, "
        f"{count.replica_states} states of a replica, {count.core_steps} steps of the core, "
        f"{count.seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
