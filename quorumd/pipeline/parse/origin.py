"""Origin of a chunk of a log, and the error for a damaged batch in it."""

from __future__ import annotations

from typing import NamedTuple


class ChunkOrigin(NamedTuple):
    """`position` is the place of the chunk's first byte in `file`.

    `snapshot_end` is the end offset (exclusive) of the snapshot that the chunk is part of, None for
    a part of the log itself.
    """

    replica_id: int | None = None
    storage_id: str | None = None
    file: str | None = None
    position: int = 0
    snapshot_end: int | None = None


class DamagedBatch(ValueError):
    """A batch that is not what it should be.

    `offset` is its first offset as far as that is known, `position` its first byte in `file`, or
    in the chunk if there is no file.
    """

    def __init__(self, what: str, offset: int | None, file: str | None, position: int) -> None:
        batch = "a batch" if offset is None else f"the batch at offset {offset}"
        where = f"byte {position}" if file is None else f"{file}, byte {position}"
        super().__init__(f"{batch} ({where}) is damaged: {what}")
        self.what = what
        self.offset = offset
        self.file = file
        self.position = position

    def __reduce__(self) -> tuple[type[DamagedBatch], tuple[str, int | None, str | None, int]]:
        # The error goes from an executor to the driver by pickle.
        return type(self), (self.what, self.offset, self.file, self.position)
