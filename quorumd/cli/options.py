"""The options that several subcommands share, and how a subcommand runs its asynchronous part."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from uuid import UUID

import click

from quorumd.client.addresses import parse_addresses
from quorumd.raft.types import Address, Endpoint, uuid_from_text

if TYPE_CHECKING:
    from quorumd.client.admin import QuorumAdmin
    from quorumd.client.client import QuorumClient
    from quorumd.client.security import Security

BOOTSTRAP_VARIABLE = "QUORUM_BOOTSTRAP_SERVERS"
COMMAND_CONFIG_VARIABLE = "QUORUM_COMMAND_CONFIG"
_OF_SPARK = ("kafka.security.", "kafka.ssl.")
"""Prefixes of the options of Spark's Kafka source that are settings of Kafka's clients."""
PROGRAM = "quorumctl"
"""Its client id: nodes on this host have slots for it, however many clients there are."""
TRACEBACK_VARIABLE = "QUORUMCTL_TRACEBACK"
TIMEOUT_S_DEFAULT = 10.0
CHANGE_TIMEOUT_S_DEFAULT = 60.0

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_SECONDS_MAX = (2**31 - 1) // 1000
"""Requests carry milliseconds in 32 bits."""


class Count(click.IntRange):
    """A whole number, of a range; what is none is called "no valid integer", and no range."""

    name = "integer"


class Seconds(click.FloatRange):
    """A time to wait, from `min` on, or above it."""

    name = "number"

    def __init__(self, min: float, *, min_open: bool = False) -> None:  # noqa: A002 (click's name)
        super().__init__(min, _SECONDS_MAX, min_open=min_open)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Refuses what is no number: no range does."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return seconds


TIMEOUT = Seconds(0, min_open=True)
OFFSET = Count(0, 2**63 - 1)
"""Requests carry offsets in 64 bits."""


def _to_addresses(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[Address, ...] | None:
    if value is None:
        return None
    try:
        return parse_addresses(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _to_security(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> Security | None:
    return None if value is None else read_command_config(value)[0]


def read_command_config(path: str) -> tuple[Security, dict[str, str]]:
    """The security that --command-config names, and the pairs of the file. Raises click.BadParameter.

    Keys may be those of Kafka's clients, or of Spark's Kafka source, with `kafka.` before them. Those that
    mean nothing here are named on stderr.
    """
    from quorumd.client.security import Security
    from quorumd.config.errors import ConfigError
    from quorumd.config.properties import read_properties

    try:
        pairs = _without_prefix(read_properties(Path(path)), path)
        found = Security.from_pairs(pairs, path)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--command-config") from None
    if found.ignored:
        names = ", ".join(found.ignored)
        click.echo(f"Warning: {path}: keys that mean nothing here are ignored: {names}", err=True)
    return found, {name: text for name, text in pairs.items() if name not in found.ignored}


def _without_prefix(pairs: Mapping[str, str], path: str) -> dict[str, str]:
    """The same keys without the `kafka.` of Spark's source. Raises ConfigError for one given twice."""
    from quorumd.config.errors import ConfigError, ConfigProblem

    found: dict[str, str] = {}
    problems = []
    for name, text in pairs.items():
        plain = name.removeprefix("kafka.") if name.startswith(_OF_SPARK) else name
        if plain in found:
            problem = f"kafka.{plain} and {plain} mean the same: remove one of them"
            problems.append(ConfigProblem(path, problem))
        found[plain] = text
    if problems:
        raise ConfigError(problems)
    return found


class Target(NamedTuple):
    """The quorum that a command is for: nodes to begin with, and how they are reached."""

    servers: tuple[Address, ...]
    security: Security | None

    def client(self, timeout_ms: int) -> QuorumClient:
        """To be closed, as all clients."""
        from quorumd.client.client import QuorumClient

        return QuorumClient(
            self.servers, client_id=PROGRAM, timeout_ms=timeout_ms, security=self.security
        )

    def admin(self, timeout_ms: int) -> QuorumAdmin:
        """To be closed, as all clients."""
        from quorumd.client.admin import QuorumAdmin

        return QuorumAdmin(
            self.servers, client_id=PROGRAM, timeout_ms=timeout_ms, security=self.security
        )


def quorum_options(command: F) -> F:
    """--bootstrap-server and --command-config, as the argument `target`."""
    return _target_options(command, required=True)


def optional_quorum_options(command: F) -> F:
    """The same for a command that also does without a quorum: `target` is None if none is named."""
    return _target_options(command, required=False)


def _target_options(command: F, *, required: bool) -> F:
    @wraps(command)
    def with_target(
        *arguments: Any,
        servers: tuple[Address, ...] | None,
        security: Security | None,
        **others: Any,
    ) -> Any:
        target = None if servers is None else Target(servers, security)
        return command(*arguments, target=target, **others)

    text = "Nodes to begin with; one that runs is enough."
    bootstrap_option = servers_option(text, callback=_to_addresses, required=required)
    return cast(F, bootstrap_option(command_config_option(with_target)))


def command_config_option(command: F) -> F:
    """--command-config, or the variable."""
    return click.option(
        "--command-config",
        "security",
        callback=_to_security,
        metavar="FILE",
        envvar=COMMAND_CONFIG_VARIABLE,
        show_envvar=True,
        help="Properties for a quorum that is not in plaintext, as for Kafka's own tools: "
        "security.protocol=SSL, ssl.truststore.location, ssl.keystore.location, ...",
    )(command)


def servers_option(text: str, **more: Any) -> Callable[[F], F]:
    """--bootstrap-server, or the variable, as the argument `servers`: a text, or None.

    `text` is its help; `click.option` takes `more` as well, such as a callback that makes addresses of it.
    """
    return click.option(
        "--bootstrap-server",
        "-b",
        "servers",
        metavar="HOST:PORT,...",
        envvar=BOOTSTRAP_VARIABLE,
        show_envvar=True,
        help=text,
        **more,
    )


def timeout_option(command: F) -> F:
    """--timeout, in seconds."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=TIMEOUT,
        metavar="SECONDS",
        default=TIMEOUT_S_DEFAULT,
        show_default=True,
        help="How long to try before giving up.",
    )(command)


def change_timeout_option(command: F) -> F:
    """--timeout, in seconds, of a change that may have to wait for a replica."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=TIMEOUT,
        metavar="SECONDS",
        default=CHANGE_TIMEOUT_S_DEFAULT,
        show_default=True,
        help="How long to wait until it is committed.",
    )(command)


def _to_uuid(context: click.Context, parameter: click.Parameter, value: str | None) -> UUID | None:
    if value is None:
        return None
    try:
        uuid = uuid_from_text(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}, as `quorumctl describe` shows them") from None
    if not uuid.int:
        raise click.BadParameter("this is the storage id that stands for none")
    return uuid


def replica_options(command: F) -> F:
    """--replica-id and --replica-uuid."""
    command = click.option(
        "--replica-uuid",
        callback=_to_uuid,
        metavar="UUID",
        help="Its storage id; not needed if there is only one under that id.",
    )(command)
    return click.option(
        "--replica-id",
        type=Count(0, 2**31 - 1),
        required=True,
        metavar="N",
        help="node.id of the replica.",
    )(command)


def to_endpoints(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[Endpoint, ...]:
    """The values of an option that names listeners, as NAME://host:port."""
    found: dict[str, Endpoint] = {}
    for value in values:
        name, separator, address = value.partition("://")
        if not separator or not name or not name.isprintable() or " " in name:
            raise click.BadParameter(f"{value!r} is no listener: expected NAME://host:port")
        if "," in address:
            raise click.BadParameter(f"{value!r}: give each listener an --endpoint of its own")
        try:
            ((host, port),) = parse_addresses(address)
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: {error}") from None
        if name.upper() in found:
            raise click.BadParameter(f"the listener {name.upper()} is named twice")
        found[name.upper()] = Endpoint(name.upper(), host, port)
    return tuple(found.values())


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


def option_group(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator; --help shows them in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def to_ms(seconds: float) -> int:
    """Whole milliseconds, at least one."""
    return max(1, round(seconds * 1000))


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine; Ctrl-C cancels it and arrives as KeyboardInterrupt."""
    return asyncio.run(main)


def run_tidily(main: Coroutine[Any, Any, T]) -> T:
    """As `run_async`, for what leaves files behind that only its own end removes.

    SIGTERM and SIGHUP cancel it, too, unless they are ignored or handled, and end the process after that.
    """
    return asyncio.run(_ended_by_signals(main))


async def _ended_by_signals(main: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    default = signal.SIG_DFL
    handled = [
        each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is default
    ]
    for number in handled:
        loop.add_signal_handler(number, end, number)
    try:
        return await main
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
        if received:
            os.kill(os.getpid(), received[0])
