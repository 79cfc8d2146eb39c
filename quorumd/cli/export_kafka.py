"""`quorumctl export-kafka`: the directory of a real Kafka controller, from that of an observer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quorumd.cli.options import Count, command_config_option, run_async, timeout_option
from quorumd.client.addresses import parse_addresses
from quorumd.raft.types import Address

if TYPE_CHECKING:
    from quorumd.cli.broker_offsets import BrokerOffset
    from quorumd.client.security import Security
    from quorumd.storage.kafka_export import KafkaExport

_HELP = """Make the directory of a lost Kafka controller from DIR, the storage.dir of an observer or witness.

For a metadata quorum that has lost so many disks that no majority is left. Stop every controller that still
runs, and the observer. Then export as many voters as make a majority of the voter set: each has its former
directory id, the log up to the high watermark that the observer knew, and an epoch of its own. Put each
directory where log.dirs (or metadata.log.dir) of that controller says, and start these controllers first.

What is taken is said first, and --dry-run only says it. Brokers keep running; one that has applied more of
the log than is taken ends, and is started again: docs/kafka.md. Those that the copy names, or --brokers, are
asked: each that will end is named, and nothing is written before you accept that.

\b
Examples:
  quorumctl export-kafka /var/lib/quorumd --node-id 1 --dry-run
  quorumctl export-kafka /var/lib/quorumd --node-id 1 --to /rescue/controller-1

\b
Exit codes: 0 done, 1 failed, 2 refused or wrong usage, 3 the copy is damaged.
"""


def _to_brokers(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[Address, ...]:
    try:
        return () if value is None else parse_addresses(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    "export-kafka", help=_HELP, short_help="Restore a lost Kafka controller's directory."
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--node-id", required=True, type=Count(0), help="Of the controller.")
@click.option("--to", "target", type=click.Path(path_type=Path), help="The new directory.")
@click.option("--dry-run", is_flag=True, help="Check the copy and say what would be written.")
@click.option(
    "--keep-tail/--drop-tail",
    default=None,
    help="Take the records, too, that this node did not know to be committed, or don't. They may be, or may "
    "never have been. Taken from a witness's copy, dropped from an observer's, unless one is given.",
)
@click.option(
    "--brokers",
    callback=_to_brokers,
    metavar="HOST:PORT,...",
    help="Ask these brokers, which run, how far they are, before anything is written; without it, those that "
    "are registered in the copy.",
)
@click.option("--no-brokers", is_flag=True, help="Ask no broker.")
@click.option(
    "--accept-ahead",
    is_flag=True,
    help="Write although some of the brokers are ahead of the copy, or do not respond.",
)
@command_config_option
@timeout_option
def export_kafka(
    directory: Path,
    node_id: int,
    target: Path | None,
    dry_run: bool,
    keep_tail: bool | None,
    brokers: tuple[Address, ...],
    no_brokers: bool,
    accept_ahead: bool,
    security: Security | None,
    timeout_s: float,
) -> int:
    """Checks all of the copy, and asks the brokers, before anything is written."""
    from quorumd.cli.broker_offsets import ask_brokers
    from quorumd.storage.kafka_export import (
        ExportRefused,
        plan_export,
        write_export,
    )
    from quorumd.storage.verify.stopped import lock_stopped

    if (target is None) != dry_run:
        raise click.UsageError("give either --to, the new directory, or --dry-run.")
    with lock_stopped(directory):
        export = plan_export(directory, node_id, keep_tail=keep_tail)
        for line in _described(export):
            click.echo(line)
        found: list[BrokerOffset] = []
        if not brokers and not no_brokers:
            brokers, found = _registered(export, is_tls=security is not None)
        if brokers:
            found += run_async(ask_brokers(brokers, export.cluster_id, security, timeout_s))
        for line in _compared(export, found):
            click.echo(line)
        if target is not None and not accept_ahead and not _is_safe(export, found):
            raise ExportRefused(
                "not all brokers are known to survive this, and nothing was written",
                path=directory,
                remedy="Use a newer copy. Or stop the brokers that are ahead, start them again after the "
                "controllers, and give --accept-ahead",
            )
        if target is not None:
            write_export(export, target)
            click.echo(f"written to {target}")
    return 0


def _registered(
    export: KafkaExport, *, is_tls: bool
) -> tuple[tuple[Address, ...], list[BrokerOffset]]:
    """Addresses at which the brokers of the copy can be asked, and the brokers that cannot."""
    from quorumd.cli.broker_offsets import BrokerOffset

    addresses, unknown = [], []
    for broker in export.brokers:
        fitting = [at for at, protocol in broker.endpoints if protocol == int(is_tls)]
        if fitting:
            addresses.append(fitting[0])
            continue
        reason = (
            f"broker {broker.id} has no listener that speaks {'TLS' if is_tls else 'plaintext'}: "
            + ("leave --command-config out" if is_tls else "give --command-config")
        )
        at = broker.endpoints[0][0] if broker.endpoints else Address("", 0)
        unknown.append(BrokerOffset(at, None, reason))
    return tuple(addresses), unknown


def _described(export: KafkaExport) -> list[str]:
    majority = len(export.voters) // 2 + 1
    lines = [
        f"cluster {export.cluster_id}, controller {export.node_id}",
        f"offsets {export.start_offset} to {export.end_offset} (exclusive), {_time(export)}",
    ]
    if export.has_voters:
        ids = ", ".join(map(str, export.voters))
        lines.append(f"voters {ids}: export {majority} of them at least, all from this same copy")
    else:
        lines.append("the log names no voters: controller.quorum.voters does, on every controller")
    if export.left_out:
        lines.append(
            f"{export.left_out} offsets above {export.end_offset} are left out: this node did not know "
            "them to be committed; --keep-tail takes them. If controller.quorum.voters named it, do that"
        )
    elif export.end_offset > export.known_end:
        lines.append(
            f"{export.end_offset - export.known_end} offsets above {export.known_end} are taken although "
            "this node did not know them to be committed"
            + (": a witness may have acknowledged them" if export.is_of_voter else "")
        )
    lines.append(
        f"a broker that has applied more than what is below offset {export.end_offset} ends when it meets "
        "the restored quorum: the rest is lost. Start it again then"
    )
    return lines


def _is_safe(export: KafkaExport, brokers: list[BrokerOffset]) -> bool:
    return all(
        each.end_offset is not None and each.end_offset <= export.end_offset for each in brokers
    )


def _compared(export: KafkaExport, brokers: list[BrokerOffset]) -> Iterator[str]:
    for each in brokers:
        if each.end_offset is None:
            yield f"broker {each.address} is NOT KNOWN to survive: {each.reason}"
        elif each.end_offset > export.end_offset:
            ahead = each.end_offset - export.end_offset
            yield (
                f"broker {each.address} is AHEAD by {ahead} offsets, up to {each.end_offset}: it will end. "
                "Start it again then: partitions of topics that it loses become directories named *-stray"
            )
        else:
            yield f"broker {each.address} is not ahead: it has applied up to offset {each.end_offset}"


def _time(export: KafkaExport) -> str:
    if export.newest_ms < 0:
        return "a snapshot alone"
    newest = datetime.fromtimestamp(export.newest_ms / 1000, UTC)
    return f"the last of {newest.isoformat(timespec='milliseconds')}"
