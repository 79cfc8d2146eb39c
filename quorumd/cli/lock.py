"""`quorumctl lock` and `quorumctl elect`: a command that runs on one host at a time."""

from __future__ import annotations

import asyncio
import errno
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from quorumd.cli.options import (
    Seconds,
    Target,
    option_group,
    quorum_options,
    run_async,
    timeout_option,
    to_ms,
)
from quorumd.cli.program import say
from quorumd.cli.text import duration_text, outage_text, printable

if TYPE_CHECKING:
    from quorumd.cli.held_command import HeldCommand, SignalRelay
    from quorumd.client.client import QuorumClient

TOKEN_VARIABLE: Final = "QUORUM_LOCK_TOKEN"
GRACE_S_DEFAULT: Final = 5.0
TTL_S: Final = 10.0
_AGAIN_S: Final = 1.0
EXIT_LOST: Final = 123
EXIT_NOT_IN_TIME: Final = 124
EXIT_NOT_RUN: Final = 125
EXIT_NOT_EXECUTABLE: Final = 126
EXIT_NOT_FOUND: Final = 127

_EXIT_CODES = f"""\b
Exit code: that of the command, 128 + n if signal n has ended it, or
  {EXIT_LOST}  {{lost}}
  {EXIT_NOT_RUN}  the command was not run: the quorum cannot be reached, ... (stderr says what)
  {EXIT_NOT_EXECUTABLE}  the command cannot be executed
  {EXIT_NOT_FOUND}  there is no such command
  2    wrong usage"""

_LOST_OR_NOT_HAD = f"""the lock was lost while the command ran
  {EXIT_NOT_IN_TIME}  the lock was not had in time (--wait); the command was not run"""

_LOCK_HELP = f"""Run a command while this process holds the lock NAME; no other process holds it meanwhile.

Those who wait for a lock get it in the order in which they came. It is renewed while the command runs, also
while the quorum's leader changes, and given back when the command has ended. If this process dies, the next
one has the lock after the ttl.

The lock is lost when the quorum is not reached for the ttl, when this process is stopped for longer, or when
it is taken away (`quorumctl unlock --force`). The command and everything in its process group then get
SIGTERM, and after --grace SIGKILL; another one may have the lock by then. So hand the token on to whatever
the command changes, and let that refuse a token that is lower than one it has seen:

\b
{TOKEN_VARIABLE}   a number in the command's environment that grows with each holder

SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the command and its group, SIGUSR1, SIGUSR2 and SIGWINCH
to the command. What it leaves running in the background is not under the lock any more. On a terminal Ctrl-Z
does not stop it: a lock that stands still is lost. A pager behind it, or a script around it, keeps the
terminal until the command reads from it.

{_EXIT_CODES.format(lost=_LOST_OR_NOT_HAD)}

\b
Examples:
  quorumctl lock jobs/nightly -- ./nightly.sh --all
  quorumctl lock jobs/nightly --wait 0 -- ./nightly.sh || [ $? = {EXIT_NOT_IN_TIME} ]
  quorumctl lock deploy --ttl 30 --wait 600 -- sh -c 'deploy --fence "${TOKEN_VARIABLE}"'
"""

_ELECT_HELP = f"""Run a command on one host of all those that run this, for as long as it is the elected one.

Start the same line on each host. One of them runs the command, the others wait. If that host dies, or loses
the quorum for the ttl, another one starts the command; the first one ends it as `quorumctl lock` does, and
waits for its next turn. When the command ends by itself, this process gives up its place and ends, too: the
next host takes over. Let the service manager start it again, if it is to stand by.

\b
{TOKEN_VARIABLE}   a number in the command's environment that grows with each term

Signals are passed on as by `quorumctl lock`.

{_EXIT_CODES.format(lost="the place was lost while the command ended after a signal")}

\b
Examples:
  quorumctl elect scheduler -- ./scheduler --config scheduler.yaml
  quorumctl elect scheduler --ttl 5 --grace 20 -- ./scheduler
"""


_Run = Callable[["QuorumClient", "SignalRelay"], Coroutine[Any, Any, int]]


class _Held(NamedTuple):
    """The lock of a command: `give_back` says whether it was held until then."""

    token: int
    lost: asyncio.Event
    give_back: Callable[[], Coroutine[Any, Any, bool]]


def _checked(check: Callable[[Any], object]) -> Callable[..., Any]:
    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        try:
            check(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
        return value

    return callback


def _check_name(name: str) -> None:
    from quorumd.client.coordination.keys import check_name

    check_name(name)


def _check_ttl(ttl_s: float) -> None:
    from quorumd.client.coordination.keys import ttl_ms_of

    ttl_ms_of(ttl_s)


name_argument = click.argument("name", callback=_checked(_check_name))
_command_argument = click.argument(
    "command", nargs=-1, required=True, metavar="-- COMMAND [ARG]..."
)
_ttl_option = click.option(
    "--ttl",
    "ttl_s",
    type=float,
    metavar="SECONDS",
    default=TTL_S,
    show_default=True,
    callback=_checked(_check_ttl),
    help="Without a renewal for so long another one may have it: 1 to 86400.",
)
_wait_option = click.option(
    "--wait",
    "wait_s",
    type=Seconds(0),
    metavar="SECONDS",
    help="How long to wait for the lock, with the time that the log is read; 0 asks once. Whether a holder"
    " that looks dead is so is watched for its ttl nevertheless, and in an outage it takes up to 5 s more to"
    " leave the queue.  [default: for ever]",
)
_grace_option = click.option(
    "--grace",
    "grace_s",
    type=Seconds(0),
    metavar="SECONDS",
    default=GRACE_S_DEFAULT,
    show_default=True,
    help="From SIGTERM to SIGKILL, when it is lost.",
)


@click.command(help=_LOCK_HELP, short_help="Run a command under a lock.")
@quorum_options
@option_group(name_argument, _command_argument, _ttl_option, _wait_option, _grace_option)
@timeout_option
def lock(
    target: Target,
    name: str,
    command: tuple[str, ...],
    ttl_s: float,
    wait_s: float | None,
    grace_s: float,
    timeout_s: float,
) -> int:
    """Returns the exit code."""
    from quorumd.cli.held_command import HeldCommand
    from quorumd.client.coordination.errors import NotAcquired
    from quorumd.client.coordination.lock import Lock

    async def run_it(client: QuorumClient, relay: SignalRelay) -> int:
        with HeldCommand(command) as ready:
            held = Lock(client, name, ttl=ttl_s, comment=_comment(command))
            try:
                token = await held.acquire(wait_s=wait_s)
            except NotAcquired as refused:
                return _failed(printable(str(refused)), EXIT_NOT_IN_TIME)
            ran = await _run_under(_Held(token, held.lost, held.release), ready, grace_s, relay)
            return EXIT_LOST if ran is None else ran

    return _run(target, timeout_s, run_it)


@click.command(help=_ELECT_HELP, short_help="Run a command on one host of many.")
@quorum_options
@option_group(name_argument, _command_argument, _ttl_option, _grace_option)
@timeout_option
def elect(
    target: Target,
    name: str,
    command: tuple[str, ...],
    ttl_s: float,
    grace_s: float,
    timeout_s: float,
) -> int:
    """Returns the exit code of the term that the command, or a signal, has ended."""
    from quorumd.cli.held_command import HeldCommand
    from quorumd.client.coordination.election import Election
    from quorumd.client.errors import QuorumUnavailable

    async def run_it(client: QuorumClient, relay: SignalRelay) -> int:
        election = Election(client, name, ttl=ttl_s, comment=_comment(command))
        has_led = False
        while True:
            with HeldCommand(command) as ready:
                try:
                    token = await election.campaign()
                except QuorumUnavailable as error:
                    if not has_led:
                        raise
                    say(outage_text(error))
                    await asyncio.sleep(_AGAIN_S)
                    continue
                has_led = True
                held = _Held(token, election.lost, election.resign)
                ran = await _run_under(held, ready, grace_s, relay)
            if ran is not None:
                return ran
            if relay.ended_by is not None:
                return EXIT_LOST
            say("waiting for the next turn")

    return _run(target, timeout_s, run_it)


def _run(target: Target, timeout_s: float, run_it: _Run) -> int:
    from quorumd.cli.terminal import end_by_ctrl_c

    code = run_async(_relayed(target, timeout_s, run_it))
    if code == 128 + signal.SIGINT:
        end_by_ctrl_c()
    return code


async def _relayed(target: Target, timeout_s: float, run_it: _Run) -> int:
    """The exit code of what runs with a client and with signals passed on."""
    from quorumd.cli.held_command import SignalRelay
    from quorumd.client.errors import QuorumError
    from quorumd.security.errors import CertificateProblem

    with SignalRelay() as relay:
        try:
            async with target.client(to_ms(timeout_s)) as client:
                return await run_it(client, relay)
        except asyncio.CancelledError:
            if relay.ended_by is None:
                raise
            return 128 + relay.ended_by
        except (QuorumError, CertificateProblem) as error:
            return _failed(str(error), EXIT_NOT_RUN)


async def _run_under(
    held: _Held, command: HeldCommand, grace_s: float, relay: SignalRelay
) -> int | None:
    """The exit code of a command that runs while this is held, and gives it back; None if it was lost."""
    from quorumd.cli.held_command import NotExecutable

    command.start(TOKEN_VARIABLE, str(held.token))
    relay.command = command
    try:
        return await _until_the_end(held, command, grace_s)
    except NotExecutable as error:
        await held.give_back()
        is_missing = error.errno == errno.ENOENT
        said = f"{printable(command.name)}: {error.strerror or error}; it was given back"
        return _failed(said, EXIT_NOT_FOUND if is_missing else EXIT_NOT_EXECUTABLE)
    finally:
        relay.command = None


async def _until_the_end(held: _Held, command: HeldCommand, grace_s: float) -> int | None:
    ended = asyncio.ensure_future(command.wait())
    lost = asyncio.ensure_future(held.lost.wait())
    await asyncio.wait({ended, lost}, return_when=asyncio.FIRST_COMPLETED)
    lost.cancel()
    if ended.done():
        code = ended.result()
        if await held.give_back():
            return code
        say(f"lost, before the command ended with exit code {code}")
        return None
    say(f"lost: the command gets SIGTERM, and SIGKILL after {duration_text(grace_s)}")
    await command.end(grace_s)
    await ended
    await held.give_back()
    return None


def _comment(command: tuple[str, ...]) -> str:
    """Its name alone: arguments may be secret."""
    return Path(command[0]).name[:100]


def _failed(message: str, code: int) -> int:
    click.echo(f"Error: {message}", err=True)
    return code
