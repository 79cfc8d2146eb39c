"""A log that does not begin at offset 0 has a snapshot of everything before its start.

Source: KIP-595, "Log Compaction and Snapshots"; KIP-630.
"""

from __future__ import annotations

from simulation.checkers.base import Checker, Look
from storage.layout import parse_snapshot_name


class Snapshots(Checker):
    name = "snapshots cover the log start"

    def on_event(self, look: Look) -> None:
        start = look.now.log_start_offset
        if not start:
            return
        found = (parse_snapshot_name(name) for name in look.disk_files)
        if not any(snapshot and snapshot[0] >= start for snapshot in found):
            raise self.fail(
                f"{look.now.local} begins at {start}, and no snapshot holds what was before"
            )
