"""The command `quorumctl`: its subcommands, and how every failure becomes a line and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 damaged files, 4 a key has changed, 130 interrupted, 141
standard output was closed. `lock` and `elect` have further ones. A traceback is shown only if
QUORUMCTL_TRACEBACK is set.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from quorumd.cli.append import append
from quorumd.cli.backup import backup
from quorumd.cli.bench import bench
from quorumd.cli.describe import describe
from quorumd.cli.dump_log import dump_log
from quorumd.cli.export_kafka import export_kafka
from quorumd.cli.get import get
from quorumd.cli.lock import elect, lock
from quorumd.cli.locks import locks, unlock
from quorumd.cli.options import (
    BOOTSTRAP_VARIABLE,
    COMMAND_CONFIG_VARIABLE,
    TRACEBACK_VARIABLE,
)
from quorumd.cli.program import (
    EXIT_FAILED,
    CommandGroup,
    end_process,
    own_failure,
    prepare_streams,
    run_program,
)
from quorumd.cli.put import delete, put
from quorumd.cli.reassign import reassign
from quorumd.cli.snapshot import snapshot
from quorumd.cli.tail import tail
from quorumd.cli.transfer_leader import transfer_leader
from quorumd.cli.txn import txn
from quorumd.cli.verify import verify
from quorumd.cli.voters import add_voter, remove_voter, replace_voter
from quorumd.cli.watch import watch
from quorumd.version_option import version_option

EXIT_USAGE = 2

_HELP = f"""Describe a running quorum, append to its log and read it, or inspect its files.

\b
Describe the quorum:
  quorumctl describe --bootstrap-server host1:9093,host2:9093 --status
  quorumctl describe --replication
\b
Change the voters and the leader:
  quorumctl add-voter --replica-id 4
  quorumctl replace-voter 3
  quorumctl reassign --voters 4,5,6 --watch
  quorumctl transfer-leader --to 2
\b
Write and read:
  quorumctl append "first record" "second record"
  quorumctl append --file records.txt
  quorumctl tail --follow
\b
Use it as a map of keys to values:
  quorumctl put color blue
  quorumctl get color
  quorumctl watch color
\b
Run a command on one host at a time:
  quorumctl lock jobs/nightly -- ./nightly.sh
  quorumctl elect scheduler -- ./scheduler
  quorumctl locks
\b
Keep a copy of everything:
  quorumctl backup /backup/2026-11-20
\b
Read a directory without a daemon, or check it:
  quorumctl dump-log /var/lib/quorumd
  quorumctl verify /var/lib/quorumd

Any one node is enough as --bootstrap-server; the others are found through it. Instead of the option
the variable {BOOTSTRAP_VARIABLE} may hold the addresses.

A quorum with TLS needs --command-config FILE, or {COMMAND_CONFIG_VARIABLE}: the properties file that
Apache Kafka's clients and tools read. Its stores are PEM or PKCS12.

\b
  security.protocol=SSL
  ssl.truststore.location=/home/alice/tls/ca.pem
  ssl.keystore.location=/home/alice/tls/alice.pem

\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 damaged files, 4 a key has changed,
130 interrupted. `lock` and `elect` have further ones: see their --help.
"""


@click.group(cls=CommandGroup, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@version_option("quorumctl")
def cli() -> None:
    """The group of all subcommands."""


for _command in (
    describe,
    add_voter,
    remove_voter,
    replace_voter,
    reassign,
    transfer_leader,
    append,
    tail,
    put,
    get,
    delete,
    txn,
    watch,
    lock,
    elect,
    locks,
    unlock,
    snapshot,
    backup,
    verify,
    dump_log,
    export_kafka,
    bench,
):
    cli.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; prints whatever goes wrong on stderr."""
    return run_program(cli, "quorumctl", arguments, _failed)


def _failed(error: Exception) -> int:
    if TRACEBACK_VARIABLE in os.environ:
        raise error
    exit_code = getattr(error, "exit_code", None)
    if isinstance(exit_code, int):
        # Errors that are made for users carry it: those of the client and those of storage.
        click.echo(f"Error: {error}", err=True)
        return exit_code
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
        text = "Error: the output of quorumctl cannot be written (No space left on device)"
        click.echo(f"{text}: what it was asked for may be done", err=True)
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"Error: {where}{error.strerror or error}", err=True)
    else:
        click.echo(f"Error: {own_failure('quorumctl', error, TRACEBACK_VARIABLE)}", err=True)
    return EXIT_FAILED


def main() -> NoReturn:
    """The entry point of the installed command."""
    prepare_streams()
    end_process(run(sys.argv[1:]))
