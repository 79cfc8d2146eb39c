"""Lines from a file or standard input, read in a thread of their own so that nothing else waits.

Memory stays bounded whatever comes: a few pieces are held, and a line may not exceed 8 MiB.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator

import click

PIECE_BYTES = 1 << 18
PIECES_MAX = 8
LINE_BYTES_MAX = 8 << 20
"""No quorum takes a larger record: log.max.batch.bytes is at most 8 MiB."""


class LineReader:
    """Lines of a file descriptor, piece by piece. `bytes_read` counts what has been handed out."""

    def __init__(self, descriptor: int) -> None:
        self.bytes_read = 0
        self._descriptor = descriptor
        self._pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._room = threading.Semaphore(PIECES_MAX)
        self._loop = asyncio.get_running_loop()

    @property
    def is_waiting(self) -> bool:
        """True if nothing more has been read by now: the writer pauses, or is slower than we are."""
        return self._pieces.empty()

    async def pieces(self) -> AsyncIterator[list[bytes]]:
        """Lists of lines without their line feed; the last line need not have one.

        Raises OSError, and click.ClickException for a line that is too long.
        """
        # Not a pool's thread: it may be blocked in a read for ever, and no exit waits for it.
        threading.Thread(target=self._read, name="input", daemon=True).start()
        rest = b""
        line_count = 0
        while piece := await self._pieces.get():
            self._room.release()
            if isinstance(piece, OSError):
                raise piece
            self.bytes_read += len(piece)
            lines = (rest + piece).split(b"\n")
            rest = lines.pop()
            line_count += len(lines)
            if len(rest) > LINE_BYTES_MAX:
                raise click.ClickException(
                    f"line {line_count + 1} is longer than {LINE_BYTES_MAX >> 20} MiB, and no quorum "
                    "takes a record of that size: the input has to be text, with a record on each line"
                )
            if lines:
                yield lines
        if rest:
            yield [rest]

    def _read(self) -> None:
        while True:
            self._room.acquire()
            piece: bytes | OSError
            try:
                piece = os.read(self._descriptor, PIECE_BYTES)
            except OSError as error:
                piece = error
            try:
                self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
            except RuntimeError:
                # The loop was closed: the program is about to end.
                return
            if not piece or isinstance(piece, OSError):
                return
