"""Errors of bytes: the ones that wire/ raises and nothing else.

All are ValueErrors, so that a caller who doesn't care about the difference needs one except.
"""

from __future__ import annotations

from quorumd.wire.error_codes import ErrorCode


class MalformedMessage(ValueError):
    """Bytes that are not the message they should be; the text says where and why."""


class LimitExceeded(MalformedMessage):
    """A message that holds more than its kind may (quorumd.wire.request_limits)."""


class UnsupportedVersion(MalformedMessage):
    """An api key or version that is not known, or a value that a version has no field for."""


class CorruptBatch(ValueError):
    """Bytes that are no record batch: too short, wrong magic or CRC, contents that don't add up.

    `position` is where the batch begins, in bytes from the start of what was read.
    """

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(f"{message} (batch at byte {position})")
        self.position = position


class TooLargeBlock(CorruptBatch):
    """A compressed block, which can only be unpacked whole, that unpacks to too much."""


class RefusedBatch(ValueError):
    """A produced batch that the log must not take.

    `error` is the code for the partition's response, `message` its text; `record_index` names the
    record at fault, counted from 0, or is None if it is the batch as a whole.
    """

    def __init__(self, error: ErrorCode, message: str, record_index: int | None = None) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
        self.record_index = record_index
