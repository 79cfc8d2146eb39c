"""The rows of a range, wherever its file can be opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from quorumd.pipeline.files.plan import FileRange
from quorumd.pipeline.parse import DamagedBatch, parse
from quorumd.storage.errors import StorageError, from_os_error
from quorumd.storage.filesystem import RealFileSystem
from quorumd.wire.batch_header import read_header
from quorumd.wire.errors import CorruptBatch


class FileChanged(StorageError):
    """A range is not there any more, because a running node has deleted, cut or rewritten its file.

    Only what was never committed is rewritten. Whoever plans anew finds what is there now.
    """


def read_bytes(file_range: FileRange) -> bytes:
    """The bytes of a range. Raises FileChanged, StorageError."""
    origin = file_range.origin
    assert origin.file is not None, "a range is part of a file"
    path = Path(origin.file)
    fs = RealFileSystem()
    try:
        handle = fs.open(path)
        try:
            data = fs.pread(handle, file_range.size_bytes, origin.position)
        finally:
            fs.close(handle)
    except FileNotFoundError:
        raise _changed(path, "the file is gone, or is not on this machine") from None
    except OSError as error:
        raise from_os_error(error, path, "reading") from error
    if len(data) < file_range.size_bytes:
        raise _changed(path, f"the file ends before byte {origin.position + file_range.size_bytes}")
    return data


def read_rows(
    table: str,
    file_range: FileRange,
    start_offset: int,
    end_offset: int,
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, as `parse` gives them.

    Raises DamagedBatch, FileChanged if a running node has rewritten it meanwhile, StorageError.
    """
    data = read_bytes(file_range)
    _check_first(file_range, data)
    try:
        yield from parse(table, data, start_offset, end_offset, file_range.origin)
    except DamagedBatch:
        if read_bytes(file_range) != data:
            path = Path(str(file_range.origin.file))
            raise _changed(path, "it was written while it was read") from None
        raise


def _check_first(file_range: FileRange, data: bytes) -> None:
    """Does it still begin with the batch that was planned? Damage is left to the parser."""
    origin = file_range.origin
    if origin.snapshot_end is not None:
        return
    try:
        offset = read_header(data).base_offset
    except CorruptBatch:
        return
    if offset != file_range.start_offset:
        what = f"offset {offset} is at byte {origin.position} instead of {file_range.start_offset}"
        raise _changed(Path(str(origin.file)), what)


def _changed(path: Path, what: str) -> FileChanged:
    return FileChanged(what, path=path, remedy="Read again; if a node runs there, that is enough")
