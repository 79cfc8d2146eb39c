"""The page that Prometheus reads; what it takes to write it is imported when it is first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from quorumd.server.disk.disk_space import disk_space
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.partition_view import PartitionView

if TYPE_CHECKING:
    from quorumd.server.http.exposition import MetricsText


class MetricsPage:
    """Renders on the event loop's thread, so that all figures are of one moment."""

    def __init__(
        self,
        metrics: Metrics,
        source: PartitionView,
        version: str,
        directory: Path,
        is_ready: Callable[[], bool],
    ) -> None:
        """`version` is the program's, for the build info; `directory` is on the disk to watch."""
        self._metrics = metrics
        self._source = source
        self._version = version
        self._directory = directory
        self._is_ready = is_ready
        self._text: MetricsText | None = None

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Body and content type, as the request's Accept header prefers."""
        if self._text is None:
            # 60 ms of importing: on the event loop they would delay everything else.
            await asyncio.to_thread(import_module, "quorumd.server.http.exposition")
            from quorumd.server.http.exposition import MetricsText

            self._text = MetricsText(self._metrics, self._source, self._version, self._is_ready)
        # A disk that hangs holds up this page, and not the event loop.
        space = await asyncio.to_thread(disk_space, self._directory)
        return self._text.render(accept, space)
