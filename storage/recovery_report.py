"""Report of a start about a log, for the operator: findings, and repairs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """The findings of a start, and its repairs. `cut_bytes` counts the torn tail without the zeros behind it;
    `cut_reason` says what is wrong with the batch that it begins with.

    `dropped_end_offset`: where a log ended that was given up for a newer snapshot, None if none was.
    """

    log_start_offset: int
    log_end_offset: int
    dropped_end_offset: int | None = None
    cut_bytes: int = 0
    cut_path: Path | None = None
    cut_position: int = 0
    cut_reason: str = ""
    rebuilt_indexes: tuple[Path, ...] = ()
    rebuilt_epochs: bool = False
    removed_files: tuple[str, ...] = ()
    foreign_files: tuple[str, ...] = ()

    def messages(self) -> list[str]:
        """One line for each thing that an operator may want to know; none after a clean stop."""
        lines = []
        if self.dropped_end_offset is not None:
            lines.append(
                f"the log that ended at offset {self.dropped_end_offset} was emptied: it did not hold"
                " what the newest snapshot stands for; it begins anew where that ends, at offset"
                f" {self.log_start_offset}"
            )
        if self.cut_bytes:
            lines.append(
                f"{self.cut_path}: cut off {self.cut_bytes} bytes of an unfinished write at byte"
                f" {self.cut_position} ({self.cut_reason}); the log ends at offset"
                f" {self.log_end_offset}"
            )
        lines += [f"{path}: index rebuilt from the log" for path in self.rebuilt_indexes]
        if self.rebuilt_epochs:
            lines.append("leader-epoch-checkpoint rebuilt from the log")
        if self.removed_files:
            lines.append(f"deleted leftovers: {', '.join(self.removed_files)}")
        if self.foreign_files:
            lines.append(f"left alone, not known here: {', '.join(self.foreign_files)}")
        return lines
