"""The driver's view of a log: a live quorum or files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from quorumd.pipeline.source.offset_range import LogBounds, OffsetRange
from quorumd.pipeline.source.options import Options

if TYPE_CHECKING:
    import pyarrow as pa


class InputSplit(Protocol):
    """The input of one task. Sent to it by pickle."""

    def read(self, options: Options) -> Iterator[pa.RecordBatch]:
        """Its rows, in the order of offsets. Raises PipelineError, DamagedBatch."""


class SourceView(Protocol):
    """One or several logs. Close it. Every method raises LogUnreachable, StorageError.

    `reaching` is an offset (exclusive) up to which everything was there before.
    """

    def bounds(self, reaching: int | None = None) -> list[LogBounds]:
        """Bounds of each log, at least one. Those found last will do if they go as far as `reaching`."""

    def end(self, reaching: int | None = None) -> int:
        """The end offset (exclusive) that all the logs have reached."""

    def offset_lookup(self, bounds: LogBounds) -> Callable[[int], int | None]:
        """A function from a time (ms) to the first offset that is not older, None if all are."""

    def splits(self, ranges: Sequence[tuple[LogBounds, OffsetRange]]) -> Sequence[InputSplit]:
        """The inputs of the tasks that read these ranges. No input is empty."""

    def close(self) -> None:
        """Ends connections."""


def open_view(options: Options) -> SourceView:
    """The log that the options name. Raises LogUnreachable."""
    if options.servers:
        from quorumd.pipeline.source.live import LiveView

        return LiveView(options)
    from quorumd.pipeline.source.disk import DiskView

    return DiskView(options)


@contextmanager
def viewing(options: Options) -> Iterator[SourceView]:
    """A view that is closed in the end."""
    view = open_view(options)
    try:
        yield view
    finally:
        view.close()
