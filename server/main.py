"""`quorumd`: the daemon, and what an operator does to its disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from config.errors import ConfigError
from config.load import load
from config.model import Config

EXIT_USAGE = 2
CONFIG_OPTION = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    default=Path("controller.yaml"),
    show_default=True,
    help="The node's configuration file.",
)


def fail(message: str, code: int = 1) -> NoReturn:
    """Say what went wrong, and end."""
    click.echo(f"quorumd: {message}", err=True)
    raise SystemExit(code)


def load_config(path: Path) -> Config:
    """The configuration, or an end that names every problem in it."""
    try:
        return load(path, os.environ)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="quorumd")
def cli() -> None:
    """A KRaft quorum: one replicated, durable log that Kafka clients and tools use unmodified.

    \b
    A new quorum of three, on each host:
        quorumd format --config controller.yaml --bootstrap
        quorumd start --config controller.yaml
    To look around first, all on this machine:
        quorumd demo
    """


@cli.command("format")
@CONFIG_OPTION
@click.option(
    "--cluster-id", metavar="ID", help="Id of the cluster; without it the first leader makes one."
)
@click.option(
    "--bootstrap",
    is_flag=True,
    help="Begin a NEW quorum: give it on every node of quorum.voters, and only on the first day.",
)
def format_command(config_path: Path, cluster_id: str | None, bootstrap: bool) -> None:
    """Prepare storage.dir for this node.

    Without --bootstrap the node joins a quorum that exists: it copies the log first and neither votes
    nor campaigns before it knows who the voters are. Use that for a replaced disk. With --bootstrap on
    a node of a quorum that exists, two empty disks could elect each other.
    """
    from raft.types import uuid_to_text
    from storage.directory import format_directory
    from storage.errors import StorageError
    from storage.filesystem import RealFileSystem

    config = load_config(config_path)
    if bootstrap and config.node_id not in {voter.id for voter in config.quorum_voters}:
        fail(
            f"--bootstrap is for the first voters, but node.id {config.node_id} is not in "
            f"quorum.voters of {config_path}. Add it there, or leave --bootstrap out to join as an "
            "observer.",
            EXIT_USAGE,
        )
    if cluster_id is not None and not _is_cluster_id(cluster_id):
        fail(
            f"--cluster-id {cluster_id!r}: 1 to 249 printable characters without spaces, please; "
            "`quorumd random-uuid` makes a good one.",
            EXIT_USAGE,
        )
    try:
        meta = format_directory(
            RealFileSystem(),
            config.storage_dir,
            node_id=config.node_id,
            cluster_id=cluster_id,
            bootstrap=bootstrap,
        )
    except StorageError as error:
        fail(str(error), error.exit_code)
    click.echo(
        f"formatted {config.storage_dir} for node {config.node_id}: "
        f"storage id {uuid_to_text(meta.storage_id)}, cluster id "
        f"{cluster_id or 'to be learnt from the quorum'}"
        f"{', first voter of a new quorum' if bootstrap else ''}"
    )


def _is_cluster_id(text: str) -> bool:
    return 0 < len(text) <= 249 and text.isprintable() and not any(c.isspace() for c in text)


@cli.command()
@CONFIG_OPTION
def start(config_path: Path) -> None:
    """Run this node until SIGTERM or Ctrl-C; logs go to stderr.

    Ready when GET /readyz on http.listen answers 200. A leader that is stopped hands over first.
    Exit codes: 0 stopped, 1 failed, 2 wrong configuration, 3 damaged storage. QUORUMD_LOG_LEVEL sets
    how much is logged: debug, info, warning or error.
    """
    from server.run import run_node

    raise SystemExit(run_node(load_config(config_path)))


@cli.command()
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-data"),
    show_default=True,
    help="Where configuration, data and logs of the nodes are; made if it is not there.",
)
@click.option("--detach", is_flag=True, help="Run in the background, until --stop.")
@click.option("--stop", is_flag=True, help="Stop a demo in this directory, and keep its data.")
def demo(directory: Path, detach: bool, stop: bool) -> None:
    """Three real nodes on this machine, with a live table and keys to kill and restart them.

    The data stays in the directory: the next start goes on with it. Without a terminal, changes are
    printed line by line. Ctrl-C stops all three.
    """
    from server import demo as demo_run
    from server.demo_nodes import DemoError

    if detach and stop:
        raise click.UsageError("--detach and --stop exclude each other.")
    try:
        if stop:
            click.echo("stopped" if demo_run.stop(directory) else f"nothing runs in {directory}")
        elif detach:
            demo_run.detach(directory)
        else:
            raise SystemExit(demo_run.run(directory))
    except DemoError as error:
        fail(str(error))


@cli.command("random-uuid")
def random_uuid() -> None:
    """Print a random uuid in Kafka's text form, for a cluster id or storage id."""
    from raft.types import uuid_to_text
    from storage.meta_properties import random_storage_id

    click.echo(uuid_to_text(random_storage_id()))


def main() -> None:
    """Entry point."""
    if sys.flags.optimize:
        fail("python -O removes the assertions that protect the log: run without it")
    cli()


if __name__ == "__main__":
    main()
