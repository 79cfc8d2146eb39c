"""The voter sets that logs have named: which are committed, and which may be in force now.

Filled from the control batches that replicas append. The first replica that appends one is the leader that
made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quorumd.raft.control import VotersRecord
from quorumd.raft.types import ReplicaKey
from quorumd.server.translate.control_records import control_records_of
from simulation.history.replica import Batch

Keys = tuple[ReplicaKey, ...]


class NamedVoters(NamedTuple):
    """A voter set of the log, the batch that names it, and the leader that made it."""

    batch: Batch
    record: VotersRecord
    leader: ReplicaKey

    @property
    def keys(self) -> Keys:
        """The keys of the voters."""
        return self.record.voters.keys


class VoterHistory:
    """See the module's docstring. `committed` is the committed log, which grows and never changes.

    `first` are the voters that the quorum was formatted with.
    """

    def __init__(self, committed: list[Batch]) -> None:
        self._log = committed
        self._seen = 0
        self._committed: list[NamedVoters] = []
        self.first: Keys = ()
        self.named: dict[Batch, NamedVoters] = {}

    def note(self, replica: ReplicaKey, batch: Batch, data: bytes | memoryview) -> None:
        """A replica appends this control batch."""
        if batch in self.named:
            return
        for _, record in control_records_of(data):
            if isinstance(record, VotersRecord):
                self.named[batch] = NamedVoters(batch, record, replica)

    @property
    def committed(self) -> list[NamedVoters]:
        """Voter sets that are committed, in order."""
        while self._seen < len(self._log):
            named = self.named.get(self._log[self._seen])
            if named is not None:
                self._committed.append(named)
            self._seen += 1
        return self._committed

    @property
    def current(self) -> Keys:
        """The voters that are committed last; before any are, the first ones."""
        committed = self.committed
        return committed[-1].keys if committed else self.first

    def last_in(self, log: Sequence[Batch]) -> Keys:
        """The voters that this log names last; before any are, the first ones."""
        return next(
            (self.named[batch].keys for batch in reversed(log) if batch in self.named), self.first
        )

    @property
    def target(self) -> tuple[int, ...] | None:
        """The ids that the reassignment is on its way to that is committed last."""
        committed = self.committed
        return committed[-1].record.target if committed else None

    def in_force(self) -> list[Keys]:
        """Every set that may decide now: the committed one, and all that may still become committed."""
        return [self.current, *(named.keys for named in self._uncommitted())]

    def targets_in_force(self) -> list[tuple[int, ...]]:
        """The ids that reassignments are, or may be, on their way to."""
        found = [self.target, *(named.record.target for named in self._uncommitted())]
        return [target for target in found if target is not None]

    def _uncommitted(self) -> list[NamedVoters]:
        end_offset = self._log[-1].end_offset if self._log else 0
        return [named for named in self.named.values() if named.batch.base_offset >= end_offset]
