"""The page that Prometheus reads; what it takes to write it is imported when it is first asked for."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from server.metrics import Metrics, StatusSource

if TYPE_CHECKING:
    from server.exposition import MetricsText


class MetricsPage:
    """Renders on the event loop's thread, so that all figures are of one moment."""

    def __init__(self, metrics: Metrics, source: StatusSource, version: str) -> None:
        """`version` is the program's, for the build info."""
        self._metrics = metrics
        self._source = source
        self._version = version
        self._text: MetricsText | None = None

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Body and content type, as the request's Accept header prefers."""
        if self._text is None:
            # 60 ms of importing: on the event loop they would delay everything else.
            await asyncio.to_thread(import_module, "server.exposition")
            from server.exposition import MetricsText

            self._text = MetricsText(self._metrics, self._source, self._version)
        return self._text.render(accept)
