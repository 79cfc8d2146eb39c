"""Log lines: `2026-11-20T19:00:00.123Z INFO  raft  became leader epoch=5`, one per state change.

Lines are written by a thread of their own, so that a terminal or pipe that is not read holds up no
node: beyond `BACKLOG_MAX` waiting lines the newest are dropped, and how many is said once there is room.
Bytes that peers have sent cannot forge a line or reach a terminal raw: all that is not printable is escaped.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from logging.handlers import QueueHandler, QueueListener
from typing import Final, TextIO

LEVEL_VARIABLE: Final = "QUORUMD_LOG_LEVEL"
LEVELS: Final = ("debug", "info", "warning", "error")
ROOT: Final = "quorumd"
BACKLOG_MAX: Final = 10_000
FIELD_CHARACTERS_MAX: Final = 500

_FIELDS = "quorumd_fields"
_SHORT_LEVELS = {"WARNING": "WARN", "CRITICAL": "FATAL"}


class LevelError(ValueError):
    """A log level that does not exist; the text says where it was set and what is permitted."""


def level_from(environ: Mapping[str, str]) -> int:
    """The level that the environment asks for, info by default. Raises LevelError."""
    name = environ.get(LEVEL_VARIABLE, "").strip().lower() or "info"
    if name not in LEVELS:
        raise LevelError(
            f"{LEVEL_VARIABLE} is {quoted(name)}; permitted values are {', '.join(LEVELS)}"
        )
    return logging.getLevelNamesMapping()[name.upper()]


def quoted(value: object) -> str:
    """A field's value as it is printed: bare if that is unambiguous, else in quotes and escaped."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        shown = repr(bytes(value[:FIELD_CHARACTERS_MAX]))[2:-1]
        return shown if _BARE.fullmatch(shown) else f'"{shown.translate(_QUOTES)}"'
    if value is None:
        text = "-"
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, float):
        text = f"{value:.6g}"
    else:
        text = str(value)
    if len(text) > FIELD_CHARACTERS_MAX:
        text = text[:FIELD_CHARACTERS_MAX] + "..."
    if text and text.isprintable() and not any(character in text for character in ' "=\\'):
        return text
    return f'"{escaped(text).translate(_QUOTES)}"'


_QUOTES = str.maketrans({'"': '\\"'})
_BARE = re.compile(r"[!#-<>-\[\]-~]+")


def escaped(text: str) -> str:
    """The text with backslashes and everything that is not printable written as escapes."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(
        character
        if character.isprintable() and character != "\\"
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


class LineFormatter(logging.Formatter):
    """Time in UTC, level, area, message, fields; a traceback follows on lines that are indented."""

    def format(self, record: logging.LogRecord) -> str:
        level = _SHORT_LEVELS.get(record.levelname, record.levelname)
        area = record.name.removeprefix(f"{ROOT}.")
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: Mapping[str, object] = getattr(record, _FIELDS, {})
        line = f"{seconds}.{int(record.msecs):03d}Z {level:<5} {area:<5} {escaped(record.getMessage())}"
        line += "".join(f" {name}={quoted(value)}" for name, value in fields.items())
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n    {escaped(text)}" for text in trace.splitlines())
        return line


class Logger:
    """Writes the lines of one area: `logger.info("became leader", epoch=5)`."""

    __slots__ = ("_logger",)

    def __init__(self, area: str) -> None:
        self._logger = logging.getLogger(f"{ROOT}.{area}")

    def debug(self, message: str, **fields: object) -> None:
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: object) -> None:
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, **fields: object) -> None:
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, **fields: object) -> None:
        self._write(logging.ERROR, message, fields)

    def exception(self, message: str, error: BaseException, **fields: object) -> None:
        """An error with its traceback: something that should not have happened."""
        if self._logger.isEnabledFor(logging.ERROR):
            self._logger.error(message, exc_info=error, extra={_FIELDS: fields})

    def critical(self, message: str, error: BaseException) -> None:
        """The error that ends the process, with its traceback."""
        self._logger.critical(message, exc_info=error)

    def _write(self, level: int, message: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, message, extra={_FIELDS: fields})


class RateLimit:
    """Says whether one more line may be written, for lines that a stranger can cause at will."""

    __slots__ = ("_allowed", "_burst", "_clock", "_per_second", "_refilled", "suppressed")

    def __init__(
        self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._allowed = float(burst)
        self._refilled = clock()
        self.suppressed = 0
        """Lines refused since the last one that was allowed by `take`."""

    def take(self) -> int | None:
        """None if the line must not be written; else how many were suppressed before it."""
        now = self._clock()
        self._allowed = min(self._burst, self._allowed + (now - self._refilled) * self._per_second)
        self._refilled = now
        if self._allowed < 1:
            self.suppressed += 1
            return None
        self._allowed -= 1
        suppressed, self.suppressed = self.suppressed, 0
        return suppressed

    def take_fields(self) -> dict[str, object] | None:
        """As `take`; the field of the line that says how many were suppressed, if any were."""
        suppressed = self.take()
        if suppressed is None:
            return None
        return {"lines_suppressed": suppressed} if suppressed else {}


class BackgroundHandler(QueueHandler):
    """Formats where the line is logged, writes on a thread of its own, never blocks the caller."""

    queue: queue.Queue[str]

    def __init__(self, stream: TextIO) -> None:
        super().__init__(queue.Queue(BACKLOG_MAX))
        self.on_drop: Callable[[], None] | None = None
        """Called for each line that is dropped, on the thread that logs it; never twice at the same time."""
        self._dropped = 0
        self._writer = _LineWriter(self.queue, stream, self.take_dropped)
        self._writer.start()

    def prepare(self, record: logging.LogRecord) -> str:
        return self.format(record) + "\n"

    def enqueue(self, line: str) -> None:  # type: ignore[override]  # what `prepare` returns
        try:
            self.queue.put_nowait(line)
        except queue.Full:
            self._dropped += 1
            if self.on_drop is not None:
                self.on_drop()

    def take_dropped(self) -> int:
        """Number of lines that were dropped since the last call."""
        self.acquire()
        dropped, self._dropped = self._dropped, 0
        self.release()
        return dropped

    def flush_within(self, timeout_s: float) -> bool:
        """Wait until all lines so far are written, but no longer than this; true if they are."""
        with self.queue.all_tasks_done:
            return self.queue.all_tasks_done.wait_for(
                lambda: not self.queue.unfinished_tasks, timeout_s
            )

    def close(self) -> None:
        """Write what waits, for a second at most, and end the thread."""
        self.flush_within(1.0)
        with suppress(queue.Full):
            self._writer.enqueue_sentinel()
        super().close()


class _LineWriter(QueueListener):
    """The thread that writes."""

    def __init__(
        self, lines: queue.Queue[str], stream: TextIO, take_dropped: Callable[[], int]
    ) -> None:
        super().__init__(lines)
        self._stream = stream
        self._take_dropped = take_dropped

    def handle(self, line: str) -> None:  # type: ignore[override]  # a line that is formatted already
        if dropped := self._take_dropped():
            line += f"    ({dropped} lines dropped: this output is read too slowly)\n"
        # If the reader of the log has gone, the node works on.
        with suppress(OSError, ValueError):
            self._stream.write(line)
            self._stream.flush()


def configure(stream: TextIO, environ: Mapping[str, str] = os.environ) -> BackgroundHandler:
    """Send the lines of all areas to `stream`. Raises LevelError.

    Call `flush_within` on the result before a process ends itself by `os._exit`, `close` otherwise.
    """
    level = level_from(environ)
    handler = BackgroundHandler(stream)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger(ROOT)
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
    return handler
