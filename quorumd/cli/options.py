"""The options that several subcommands share, and how a subcommand runs its asynchronous part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from quorumd.client.addresses import Address, parse_addresses

BOOTSTRAP_VARIABLE = "QUORUM_BOOTSTRAP_SERVERS"
TRACEBACK_VARIABLE = "QUORUMCTL_TRACEBACK"
TIMEOUT_S_DEFAULT = 10.0

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def _to_addresses(
    context: click.Context, parameter: click.Parameter, value: str
) -> tuple[Address, ...]:
    try:
        return parse_addresses(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def bootstrap_option(command: F) -> F:
    """--bootstrap-server, or the variable."""
    return click.option(
        "--bootstrap-server",
        "-b",
        "servers",
        callback=_to_addresses,
        metavar="HOST:PORT,...",
        envvar=BOOTSTRAP_VARIABLE,
        required=True,
        show_envvar=True,
        help="Nodes to begin with; one that runs is enough.",
    )(command)


def timeout_option(command: F) -> F:
    """--timeout, in seconds."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        default=TIMEOUT_S_DEFAULT,
        show_default=True,
        help="How long to try before giving up.",
    )(command)


def output_option(*choices: str) -> Callable[[F], F]:
    """--output with these choices, the first being the default."""
    return click.option(
        "--output",
        "-o",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        help="For people, or for programs.",
    )


def to_ms(seconds: float) -> int:
    """Whole milliseconds, at least one."""
    return max(1, round(seconds * 1000))


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine; Ctrl-C cancels it and arrives as KeyboardInterrupt."""
    return asyncio.run(main)


def own_version() -> str:
    """The version of the installed package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("quorumd")
    except PackageNotFoundError:
        return "unknown"
