"""`quorumd`: the daemon, and what an operator does to its disk."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from quorumd.config.errors import ConfigError
from quorumd.config.load import load
from quorumd.config.model import Config
from quorumd.config.tls_checks import JudgeOfPort
from quorumd.server.admin.certs import certs
from quorumd.version_option import version_option

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
CONFIG_OPTION = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    show_default="controller.yaml, if it is there",
    help="The node's configuration file; QUORUMD_ variables win over it, and may set everything.",
)


def fail(message: str, code: int = 1) -> NoReturn:
    """Say what went wrong, and end."""
    click.echo(f"quorumd: {message}", err=True)
    raise SystemExit(code)


def load_config(path: Path | None, judge: JudgeOfPort | None = None) -> Config:
    """The configuration, or an end that names every problem in it, and what `judge` has found."""
    try:
        return load(path, os.environ, judge)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)


class _Commands(click.Group):
    """Ctrl-C ends a command as it ends those of `quorumctl`; click would say "Aborted!", that it failed."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                # The terminal has just shown ^C.
                click.echo(err=True)
            raise SystemExit(EXIT_INTERRUPTED) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@version_option("quorumd")
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
@click.option(
    "--standalone",
    is_flag=True,
    help="Begin a NEW quorum of this node alone, which `quorumctl add-voter` lets grow.",
)
@click.option(
    "--initial-voters",
    metavar="LIST",
    help="Begin a NEW quorum of these: 1@host:port:STORAGE-ID,...; the same list on each of them. "
    "`quorumd random-uuid` makes storage ids.",
)
@click.option(
    "--kafka-log",
    is_flag=True,
    help="Observe a real Apache Kafka quorum: quorum.bootstrap.servers are its controllers. Needs "
    "--cluster-id, which `quorumctl describe` of such a controller prints.",
)
def format_command(
    config_path: Path | None,
    cluster_id: str | None,
    bootstrap: bool,
    standalone: bool,
    initial_voters: str | None,
    kafka_log: bool,
) -> None:
    """Prepare storage.dir for this node.

    Without --bootstrap, --standalone or --initial-voters the node joins a quorum that exists: it copies
    the log first and neither votes nor campaigns before it knows who the voters are. Use that for a
    replaced disk. With --bootstrap on a node of a quorum that exists, two empty disks could elect each
    other.

    With --kafka-log that quorum is one of Kafka controllers. The node copies their metadata log and
    writes nothing of its own into it; docs/kafka.md has the steps.
    """
    from quorumd.raft.types import uuid_to_text
    from quorumd.server.admin.first_voters import check_kafka_log, first_voters
    from quorumd.storage.directory import format_directory
    from quorumd.storage.filesystem import RealFileSystem
    from quorumd.storage.meta_properties import LogOwner

    config = load_config(config_path)
    _check_cluster_id(cluster_id)
    if bootstrap + standalone + (initial_voters is not None) > 1:
        raise click.UsageError(
            "--bootstrap, --standalone and --initial-voters exclude each other: one of them says who "
            "the first voters are."
        )
    is_new = bootstrap or standalone or initial_voters is not None
    with _refusals():
        if kafka_log:
            check_kafka_log(config, cluster_id, is_new=is_new)
        first = first_voters(config, bootstrap, standalone, initial_voters)
        meta = format_directory(
            RealFileSystem(),
            config.storage_dir,
            node_id=config.node_id,
            cluster_id=cluster_id,
            storage_id=first.storage_id,
            log_owner=LogOwner.KAFKA if kafka_log else LogOwner.QUORUMD,
            bootstrap=first.is_new,
            initial_voters=first.text,
        )
    beside = f", {'a witness of' if config.quorum_witness else 'observes'} a Kafka quorum"
    click.echo(
        f"formatted {config.storage_dir} for node {config.node_id}: "
        f"storage id {uuid_to_text(meta.storage_id)}, cluster id "
        f"{cluster_id or 'to be learnt from the quorum'}"
        f"{', first voter of a new quorum' if first.is_new else ''}"
        f"{beside if kafka_log else ''}"
    )


def _check_cluster_id(text: str | None) -> None:
    if text is not None and not _is_cluster_id(text):
        fail(
            f"--cluster-id {text!r}: 1 to 249 printable characters without spaces, please; "
            "`quorumd random-uuid` makes a good one.",
            EXIT_USAGE,
        )


def _is_cluster_id(text: str) -> bool:
    return 0 < len(text) <= 249 and text.isprintable() and not any(c.isspace() for c in text)


@cli.command("restore", short_help="Begin a NEW quorum from a backup.")
@click.argument("backup", type=click.Path(path_type=Path))
@CONFIG_OPTION
@click.option(
    "--cluster-id", metavar="ID", help="Id of the new quorum; the same on all of its nodes."
)
@click.option(
    "--keep-cluster-id",
    is_flag=True,
    help="Take the id of the former quorum: only if none of its nodes will ever run again.",
)
@click.option("--standalone", is_flag=True, help="As for format, instead of quorum.voters.")
@click.option("--initial-voters", metavar="LIST", help="As for format, instead of quorum.voters.")
def restore_command(
    backup: Path,
    config_path: Path | None,
    cluster_id: str | None,
    keep_cluster_id: bool,
    standalone: bool,
    initial_voters: str | None,
) -> None:
    """Begin a NEW quorum from a backup, in place of `format --bootstrap`.

    Give the same command, with the same BACKUP, on EVERY node of quorum.voters, then start them all. The
    quorum has the records of the backup at the offsets that they had, knows the idempotent producers of
    the former one, and has voters, storage ids and a cluster id of its own: nodes of the former quorum
    are refused. Without an option the cluster id follows from the backup and the first voters, so that
    all nodes agree.

    The command verifies the whole backup before it writes. storage.dir must be empty. A node cannot
    start on an interrupted restore; run it again.

    \b
    Exit codes: 0 restored, 1 failed, 2 wrong configuration or usage, 3 the backup is damaged.
    """
    from quorumd.raft.types import uuid_to_text
    from quorumd.server.admin.restore import restore_node
    from quorumd.storage.filesystem import RealFileSystem

    if cluster_id is not None and keep_cluster_id:
        raise click.UsageError("--cluster-id and --keep-cluster-id exclude each other.")
    if standalone and initial_voters is not None:
        raise click.UsageError("--standalone and --initial-voters exclude each other.")
    _check_cluster_id(cluster_id)
    config = load_config(config_path)
    with _refusals():
        restored = restore_node(
            RealFileSystem(),
            backup,
            config,
            cluster_id=cluster_id,
            keep_cluster_id=keep_cluster_id,
            standalone=standalone,
            initial_voters=initial_voters,
            progress=_progress,
        )
    manifest = restored.manifest
    click.echo(
        f"restored offsets {manifest.start_offset} to {manifest.end_offset} (exclusive) of {backup} to "
        f"{config.storage_dir} for node {config.node_id}: storage id "
        f"{uuid_to_text(restored.meta.storage_id)}, cluster id {restored.cluster_id}"
    )
    if not standalone:
        click.echo(
            "Do the same with the same backup on every first voter of the new quorum; the cluster id "
            "must be the same everywhere. Then start them all."
        )


@contextmanager
def _refusals() -> Iterator[None]:
    """End with the exit code of an error that says why a directory is not made."""
    from quorumd.server.admin.first_voters import FormatRefused
    from quorumd.storage.errors import StorageError

    try:
        yield
    except FormatRefused as error:
        fail(str(error), EXIT_USAGE)
    except StorageError as error:
        fail(str(error), error.exit_code)


@contextmanager
def _progress(label: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr if that is a terminal; what is yielded takes how many more bytes are done."""
    if not sys.stderr.isatty():
        yield lambda step_bytes: None
        return
    with click.progressbar(length=size_bytes, label=label, file=sys.stderr) as bar:
        yield bar.update


@cli.command()
@CONFIG_OPTION
def start(config_path: Path | None) -> None:
    """Run this node until SIGTERM or Ctrl-C; logs go to stderr.

    Ready when GET /readyz on http.listen responds with 200. A leader that is stopped hands over first.
    Exit codes: 0 stopped, 1 failed, 2 wrong configuration, 3 damaged storage. QUORUMD_LOG_LEVEL sets
    how much is logged: debug, info, warning or error.
    """
    try:
        # Until the node handles them itself; as process 1 of a container it would not even end by SIGTERM.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        # SIGHUP has a node read keys and certificates again: at the start it does so anyway.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        from quorumd.server.certificate_checks import certificate_problems
        from quorumd.server.run import run_node

        code = run_node(load_config(config_path, certificate_problems))
    except KeyboardInterrupt:
        click.echo("quorumd: stopped before the node was up", err=True)
        code = 0
    raise SystemExit(code)


@cli.command(short_help="Three real nodes on this machine, to look around.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-data"),
    show_default=True,
    help="Where configuration, data and logs of the nodes are; made if it is not there.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="With mutual TLS: a CA, certificates of the nodes and of a client, and what is refused.",
)
@click.option("--detach", is_flag=True, help="Run in the background, until --stop.")
@click.option("--stop", is_flag=True, help="Stop a demo in this directory, and keep its data.")
def demo(directory: Path, secure: bool, detach: bool, stop: bool) -> None:
    """Three real nodes on this machine, with a live table and keys to kill and restart them.

    The data stays in the directory: the next start goes on with it. Without a terminal, changes are
    printed line by line. Ctrl-C stops all three.
    """
    from quorumd.server.demo import demo as demo_run
    from quorumd.server.demo.nodes import DemoError

    if detach and stop:
        raise click.UsageError("--detach and --stop exclude each other.")
    try:
        if stop:
            click.echo("stopped" if demo_run.stop(directory) else f"nothing runs in {directory}")
        elif detach:
            demo_run.detach(directory, secure=secure)
        else:
            raise SystemExit(demo_run.run(directory, secure=secure))
    except DemoError as error:
        fail(str(error))


@cli.command("random-uuid", short_help="Print an id for a cluster or a storage.")
def random_uuid() -> None:
    """Print a random uuid in Kafka's text form, for a cluster id or storage id."""
    from quorumd.raft.types import uuid_to_text
    from quorumd.storage.meta_properties import random_storage_id

    click.echo(uuid_to_text(random_storage_id()))


cli.add_command(certs)


@certs.command("check", short_help="Tell what a start would be refused for.")
@CONFIG_OPTION
def check_certificates(config_path: Path | None) -> None:
    """Tell what a start, or new files while the node runs, would be refused for; else when they end.

    Looks at everything that the configuration says of TLS, and at the files; asks no other node.
    Exit codes: 0 nothing would be refused, 2 something would, all of it named.
    """
    from quorumd.server.certificate_checks import certificate_problems, certificate_report

    for line in certificate_report(load_config(config_path, certificate_problems)):
        click.echo(line)


def _open_missing_streams() -> None:
    """Gives /dev/null to a standard stream that is closed: as long as its descriptor is free, the event loop
    gets it for what it opens, and aborts the process when it closes that."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest descriptor that is free: that of the stream.
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode))


def main() -> None:
    """Entry point."""
    _open_missing_streams()
    if sys.flags.optimize:
        fail("python -O removes the assertions that protect the log: run without it")
    try:
        cli()
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        fail(f"the output cannot be written: {error.strerror}")


if __name__ == "__main__":
    main()
