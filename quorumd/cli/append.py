"""`quorumctl append`: records from arguments, a file or standard input to the log."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import click

from quorumd.cli.options import (
    Count,
    Target,
    option_group,
    output_option,
    quorum_options,
    run_async,
    timeout_option,
    to_ms,
)
from quorumd.cli.text import counted, to_json

if TYPE_CHECKING:
    from quorumd.client.producer import Producer
    from quorumd.wire.records import Record

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
BATCH_BYTES_DEFAULT = 256 * 1024
BATCH_BYTES_MAX = 8 << 20

Idle = Callable[[], bool]
OnChunk = Callable[[], None]

_HELP = """Append records to the log, and wait until a majority has them on disk.

Each VALUE becomes one record. Without a VALUE each line of standard input does, or of --file.
A record reported as appended is never lost. Records are sent in batches, in order, and each is
appended once even if the leader changes meanwhile.

\b
Examples:
  quorumctl append -b localhost:9093 hello world
  quorumctl append --key color blue
  quorumctl append --key-separator = --file settings.properties
  journalctl -f | quorumctl append
  quorumctl append --key color --null-value DELETED DELETED      (deletes the key)
"""


class RecordFormat(Protocol):
    """The format of an input line: how it becomes a record."""

    def record(self, line: bytes) -> Record:
        """The record of one line. Raises ClickException if the line is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """Lines as the options of `append` describe them."""

    key: bytes | None
    key_separator: bytes | None
    null_value: bytes | None
    headers: tuple[tuple[bytes, bytes], ...]

    def record(self, line: bytes) -> Record:
        """Raises ClickException if the line lacks the separator."""
        from quorumd.wire.records import Record

        key = self.key
        value: bytes | None = line
        if self.key_separator is not None:
            key, separator, value = line.partition(self.key_separator)
            if not separator:
                shown = line[:60].decode("utf-8", "replace")
                raise click.ClickException(
                    f"{shown!r} does not contain the separator "
                    f"{self.key_separator.decode('utf-8', 'replace')!r} between key and value"
                )
        if value == self.null_value:
            value = None
        return Record(key=key, value=value, headers=self.headers)


_line_options = option_group(
    click.option("--key", help="The key of every record."),
    click.option(
        "--key-separator", metavar="TEXT", help="Each line is a key, this separator, and a value."
    ),
    click.option("--null-value", metavar="TEXT", help="A value equal to this becomes null."),
    click.option(
        "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every record."
    ),
    click.option(
        "--file",
        "path",
        type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
        help="Read lines from this file.",
    ),
)


_batch_options = option_group(
    click.option(
        "--compression", type=click.Choice(tuple(CODECS)), default="none", show_default=True
    ),
    click.option(
        "--batch-bytes",
        type=Count(1, BATCH_BYTES_MAX),
        default=BATCH_BYTES_DEFAULT,
        show_default=True,
        help="Send at most so much at once.",
    ),
    click.option(
        "--idempotent/--no-idempotent",
        default=True,
        show_default=True,
        help="Whether the quorum recognises a batch that is sent again. Without, a record may be "
        "appended twice if a leader fails.",
    ),
)


@click.command(help=_HELP, short_help="Append records to the log.")
@quorum_options
@click.argument("values", nargs=-1, metavar="[VALUE]...")
@_line_options
@_batch_options
@output_option("text", "json")
@timeout_option
def append(
    target: Target,
    values: tuple[str, ...],
    key: str | None,
    key_separator: str | None,
    null_value: str | None,
    headers: tuple[str, ...],
    path: str | None,
    compression: str,
    batch_bytes: int,
    idempotent: bool,
    output: str,
    timeout_s: float,
) -> None:
    """Sends everything, waits for the acknowledgements, prints what was appended."""
    if values and path:
        raise click.UsageError("give either values or --file, not both.")
    job = AppendJob(
        target,
        _line_format(key, key_separator, null_value, headers),
        timeout_ms=to_ms(timeout_s),
        codec=CODECS[compression],
        batch_bytes=batch_bytes,
        idempotent=idempotent,
    )
    try:
        if values:
            run_async(job.append_lines([os.fsencode(value) for value in values]))
        else:
            with opened(path) as descriptor:
                run_async(job.append_stream(descriptor))
    except KeyboardInterrupt:
        click.echo(f"interrupted: {job.acknowledged_text()}", err=True)
        raise
    if output == "json":
        click.echo(to_json(job.as_dict()))
    else:
        click.echo(job.as_text() if job.count else "nothing to append: the input was empty")


def _line_format(
    key: str | None, key_separator: str | None, null_value: str | None, headers: tuple[str, ...]
) -> LineFormat:
    """Raises UsageError."""
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator exclude each other.")
    if key_separator == "":
        raise click.UsageError("--key-separator must not be empty.")
    return LineFormat(
        key=None if key is None else os.fsencode(key),
        key_separator=None if key_separator is None else os.fsencode(key_separator),
        null_value=None if null_value is None else os.fsencode(null_value),
        headers=tuple(_header(text) for text in headers),
    )


class AppendJob:
    """One run of a command that appends: what to send, and what has become of it.

    `first_offset` and `last_offset` (inclusive) are -1 until something is acknowledged.
    """

    def __init__(
        self,
        target: Target,
        record_format: RecordFormat,
        *,
        timeout_ms: int,
        codec: int = 0,
        batch_bytes: int = BATCH_BYTES_DEFAULT,
        idempotent: bool = True,
    ) -> None:
        self.first_offset = -1
        self.last_offset = -1
        self.count = 0
        self._target = target
        self._format = record_format
        self._timeout_ms = timeout_ms
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._is_idempotent = idempotent
        self._unknown_count = 0
        self._started = time.monotonic()

    async def append_lines(self, lines: list[bytes]) -> None:
        """Appends these, and waits for them."""
        await self._append(_once(lines), lambda: False, None)

    async def append_stream(self, descriptor: int) -> None:
        """Appends every line; whenever none is waiting, what was read is sent and waited for."""
        from quorumd.cli.lines import LineReader

        reader = LineReader(descriptor)
        size_bytes = os.fstat(descriptor).st_size
        if os.isatty(descriptor):
            click.echo("Type one record per line; Ctrl-D ends the input.", err=True)
        with _progress(size_bytes) as advance:
            await self._append(
                reader.pieces(), lambda: reader.is_waiting, lambda: advance(reader.bytes_read)
            )

    async def _append(
        self, pieces: AsyncIterator[list[bytes]], is_idle: Idle, on_piece: OnChunk | None
    ) -> None:

        async with self._target.client(self._timeout_ms) as client:
            producer = client.producer(
                idempotent=self._is_idempotent,
                codec=self._codec,
                batch_bytes=self._batch_bytes,
                on_acknowledged=self._acknowledged,
            )
            try:
                await self._feed(producer, pieces, is_idle, on_piece)
            except (asyncio.CancelledError, Exception):
                self._unknown_count = producer.unknown_count
                raise

    async def _feed(
        self,
        producer: Producer,
        pieces: AsyncIterator[list[bytes]],
        is_idle: Idle,
        on_piece: OnChunk | None,
    ) -> None:
        try:
            async for lines in pieces:
                for line in lines:
                    await producer.append(self._format.record(line))
                if is_idle():
                    await producer.flush()
                if on_piece is not None:
                    on_piece()
        except click.ClickException as error:
            # Records before a line that is none are appended all the same.
            await producer.flush()
            raise click.ClickException(f"{error.message}. {self.acknowledged_text()}.") from None
        await producer.flush()

    def _acknowledged(self, base_offset: int, count: int) -> None:
        if self.first_offset < 0:
            self.first_offset = base_offset
        self.count += count
        self.last_offset = base_offset + count - 1

    def acknowledged_text(self) -> str:
        """Numbers of records that are acknowledged, and that may be in the log: for an early end."""
        text = f"{counted(self.count, 'record')} acknowledged"
        if self.count:
            text += f", the last one at offset {self.last_offset}"
        if self._unknown_count:
            text += f"; {counted(self._unknown_count, 'record')} more may be in the log"
        return text

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._started

    def as_dict(self) -> dict[str, int | float]:
        """The appended range, for programs; offsets are inclusive, -1 for none."""
        return {
            "records": self.count,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
            "seconds": round(self.seconds, 3),
        }

    def as_text(self) -> str:
        """The appended range, and the rate if the append took long enough to measure."""
        text = f"appended {counted(self.count, 'record')}, last offset {self.last_offset}"
        if self.count >= 1000:
            rate = self.count / self.seconds
            text += f", {self.seconds:.1f} s, {rate:,.0f} records/s"
        return text


def _header(text: str) -> tuple[bytes, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--header {text!r}: expected NAME=VALUE.")
    return os.fsencode(name), os.fsencode(value)


async def _once(lines: list[bytes]) -> AsyncIterator[list[bytes]]:
    yield lines


@contextmanager
def opened(path: str | None) -> Iterator[int]:
    """The descriptor of a file; standard input for None and "-"."""
    if path is None or path == "-":
        yield sys.stdin.fileno()
        return
    with open(path, "rb", buffering=0) as file:
        yield file.fileno()


@contextmanager
def _progress(size_bytes: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal if the input's size is known; it is on stderr and gone at the end."""
    if not size_bytes or not sys.stderr.isatty():
        yield lambda bytes_read: None
        return
    from quorumd.cli.progress import byte_progress

    with byte_progress("appending", size_bytes) as advance:
        yield advance
