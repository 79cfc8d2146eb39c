"""Shared parts of our command lines: how they end, whatever goes wrong, and what they say then."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import click

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
_ESCAPES = "quorumd.escapes"


class _OutputClosed(Exception):
    """The reader of the output has gone."""


class _Interrupted(Exception):
    """Ctrl-C."""


class CommandGroup(click.Group):
    """A group of commands; click has ends of its own for a closed output and for Ctrl-C."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise _OutputClosed from None
        except KeyboardInterrupt:
            raise _Interrupted from None
        return result


def run_program(
    group: CommandGroup, name: str, arguments: Sequence[str], on_error: Callable[[Exception], int]
) -> int:
    """Runs one command line and returns its exit code; click's errors are printed on stderr.

    `on_error` gets any other error, prints it and returns the exit code.
    """
    try:
        result = group.main(list(arguments), prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (_Interrupted, click.Abort, KeyboardInterrupt):
        if sys.stderr.isatty():
            # The terminal has just shown ^C; the prompt belongs on the next line.
            click.echo(err=True)
        return EXIT_INTERRUPTED
    except _OutputClosed:
        # So that the interpreter's own flush at exit does not complain about the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:
        return on_error(error)
    return result if isinstance(result, int) else 0


def end_process(exit_code: int) -> NoReturn:
    """Ends this process, its output written, without the interpreter's own end: that takes 20 ms."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            exit_code = exit_code or EXIT_FAILED
    os._exit(exit_code)


def say(message: str) -> None:
    """A line of `quorumctl` on stderr, beside what a command says that it runs."""
    with suppress(OSError):  # It goes on without whoever read it, a terminal for example.
        click.echo(f"quorumctl: {message}", err=True)


def own_failure(name: str, error: Exception, traceback_variable: str) -> str:
    """Text to print for an error that was not made for users, which is a fault of quorumd."""
    return (
        f"{name} itself failed: {type(error).__name__}: {error}\n"
        f"Please report this; with {traceback_variable}=1 in the environment it says where."
    )


def prepare_streams() -> None:
    """So that to print is no exception where a stream is closed, or has no such character."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # as it is where a shell has closed it
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (until the end of the process)
    codecs.register_error(_ESCAPES, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPES)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """As in JSON: what is JSON stays so."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
