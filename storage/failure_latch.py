"""After a write or sync that failed it is unknown what is on the disk: no call may follow it."""

from __future__ import annotations

from quorumd.storage.errors import DiskFailed, DiskFull, StorageError


class FailureLatch:
    """Remembers the first failure that is final, which any StorageError but DiskFull is.

    A `with` block is one call of the disk: refused after a failure, and its own failure is remembered.
    `check` and `note` do the same for less, for the calls that are made for each group of records.
    """

    __slots__ = ("failure",)

    def __init__(self) -> None:
        self.failure: StorageError | None = None

    def refuse(self) -> None:
        """Raises DiskFailed, which names the failure; call it only after one."""
        failure = self.failure
        assert failure is not None, "nothing has failed"
        raise DiskFailed(
            f"refused after an earlier failure ({failure})",
            path=failure.path,
            remedy=failure.remedy,
        )

    def check(self) -> None:
        """Before a call of the disk. Raises DiskFailed after a failure."""
        if self.failure is not None:
            self.refuse()

    def note(self, error: StorageError) -> None:
        """A call of the disk, or `check` before it, has raised this."""
        if self.failure is None and not isinstance(error, DiskFull):
            self.failure = error

    def __enter__(self) -> None:
        self.check()

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, StorageError):
            self.note(error)
