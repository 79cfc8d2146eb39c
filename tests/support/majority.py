"""Whether a quorum always had its majority: leaders are asked, all the time, who fetched from them."""

from __future__ import annotations

import threading
import time
from typing import Self

from tests.support.live_cluster import Cluster

LOOK_S = 0.2
"""More seldom is stricter: a leader that is not seen does not count."""


class MajorityWatch:
    """Looks for a leader and as many voters as a majority needs beside it. Use it in `with`."""

    def __init__(self, cluster: Cluster) -> None:
        self.longest_without_s = 0.0
        """The longest time in which no leader was fetched from by a majority of the voters, itself one."""
        self._cluster = cluster
        self._last_s = time.time()
        """When such a leader was fetched from last, as far as is known."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._note(time.time())

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            for node in self._cluster.voters:
                try:
                    status = self._cluster.status(node)
                except OSError:
                    continue
                if status["role"] == "leader":
                    voters = [row for row in status["replicas"] if row["is_voter"]]
                    others = sorted(row["last_fetch_ms"] for row in voters if row["id"] != node)
                    # It needs half of the voters beside itself.
                    self._note(others[-(len(voters) // 2)] / 1000)

    def _note(self, at_s: float) -> None:
        if at_s > self._last_s:
            self.longest_without_s = max(self.longest_without_s, at_s - self._last_s)
            self._last_s = at_s
