"""The option `--version` of every command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from quorumd.version import version_and_revision

F = TypeVar("F", bound=Callable[..., Any])


def version_option(program: str) -> Callable[[F], F]:
    """--version: print the program's name, version and commit, and end."""

    def show(context: click.Context, parameter: click.Parameter, is_given: bool) -> None:
        if is_given and not context.resilient_parsing:
            click.echo(f"{program}, version {version_and_revision()}")
            context.exit()

    return click.option(
        "--version",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=show,
        help="Show the version and the commit, and exit.",
    )
