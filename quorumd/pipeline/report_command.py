"""`quorumd-pipeline report`: the tables as a page to look at."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import click

_HELP = """Make one HTML page with plots of the tables in DIR: leaders and voters over time, epochs,
append rate, lag of the tables, membership, and the findings of an audit. Spark and Java are not needed.

\b
Examples:
  quorumd-pipeline report tables
  quorumd-pipeline report tables --findings audit --output report.html
"""


@click.command(help=_HELP, short_help="Make an HTML page with plots of the tables.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--findings",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="What audit --findings has written.",
)
@click.option(
    "--output",
    "-o",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    metavar="FILE",
    help="The page.",
)
def report(folder: Path, findings: Path | None, target: Path) -> None:
    """The subcommand."""
    from quorumd.pipeline.report.facts import read_facts
    from quorumd.pipeline.report.page import page

    text = page(read_facts(folder, findings), datetime.now(UTC))
    part = target.with_name(f".{target.name}.part")
    try:
        part.write_text(text)
        part.replace(target)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise OSError(error.errno, error.strerror, str(target)) from error
    click.echo(f"{target}: {len(text.encode()) / 1024:,.0f} KiB")
