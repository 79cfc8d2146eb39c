"""`quorumd certs`: a CA and certificates for tests and small sites."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from quorumd.config.values import MAX_ID

EXIT_REFUSED = 2
_DIRECTORY = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("certs"),
    show_default=True,
    help="Where the CA and all certificates are.",
)
_FORCE = click.option("--force", is_flag=True, help="Replace files that are there.")


class _Integer(click.IntRange):
    """A whole number; what is none is called "no valid integer", and no range."""

    name = "integer"


_DAYS = _Integer(1, 36_500)


@click.group("certs", short_help="Make a CA and certificates, or check those of a node.")
def certs() -> None:
    """A CA and certificates for a test or a small site; a larger one has a CA already.

    \b
    quorumd certs ca
    quorumd certs node --id 1 --host db1.example.com
    quorumd certs client alice
    quorumd certs check --config controller.yaml
    """


@certs.command("ca")
@_DIRECTORY
@click.option("--days", type=_DAYS, default=3_650, show_default=True, help="How long it is valid.")
@_FORCE
def ca_command(directory: Path, days: int, force: bool) -> None:
    """Make a CA. Everybody gets its ca.pem; ca.key stays on this machine, and nowhere else."""
    with _refusals():
        from quorumd.security import make_certificates as makers

        _show(makers.make_ca(directory, days, force=force))


@certs.command("node", short_help="Make the key and the certificate of a node.")
@_DIRECTORY
@click.option("--id", "node_id", type=_Integer(0, MAX_ID), required=True, help="Its node.id.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    required=True,
    help="A host name or IP address under which others dial it; once for each.",
)
@click.option("--days", type=_DAYS, default=397, show_default=True, help="How long it is valid.")
@_FORCE
def node_command(
    directory: Path, node_id: int, hosts: tuple[str, ...], days: int, force: bool
) -> None:
    """Make the private key and certificate of a node, and say what its configuration needs."""
    with _refusals():
        from quorumd.security import make_certificates as makers

        (store,) = makers.make_node(directory, node_id, hosts, days, force=force)
        _show([store])
        click.echo("\nIn the node's configuration, with the paths to which you copy these files:\n")
        for line in makers.node_settings(store.absolute(), directory.absolute()):
            click.echo(f"    {line}")


@certs.command("client", short_help="Make the key and the certificate of a client.")
@_DIRECTORY
@click.argument("name")
@click.option("--days", type=_DAYS, default=397, show_default=True, help="How long it is valid.")
@_FORCE
def client_command(directory: Path, name: str, days: int, force: bool) -> None:
    """Make the private key, the certificate and the properties file of a client."""
    with _refusals():
        from quorumd.security import make_certificates as makers

        made = makers.make_client(directory, name, days, force=force)
        _show(made)
        path = shlex.quote(str(made[-1]))
        click.echo(f"\nTry it: quorumctl describe --command-config {path} -b HOST:PORT")


def _show(paths: list[Path]) -> None:
    for path in paths:
        click.echo(f"made {path}")


@contextmanager
def _refusals() -> Iterator[None]:
    """End with what cannot be made, and why."""
    from quorumd.security.errors import CertificateProblem

    try:
        yield
    except CertificateProblem as problem:
        click.echo(f"quorumd: {problem}", err=True)
        raise SystemExit(EXIT_REFUSED) from None
