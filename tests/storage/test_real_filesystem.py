"""The operating system's files: short reads and writes, and locks that others see."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from quorumd.storage.filesystem import RealFileSystem, write_all
from tests.storage.helpers import DIRECTORY, empty_disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_a_read_that_brings_less_than_it_was_asked_for_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = RealFileSystem()
    path.write_bytes(bytes(range(100)))
    handle = fs.open(path)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda handle, size, at: real(handle, min(size, 7), at))
    assert fs.pread(handle, 50, 10) == bytes(range(10, 60))
    assert fs.pread(handle, 50, 80) == bytes(range(80, 100))
    assert fs.pread(handle, 50, 100) == b""
    fs.close(handle)


def test_a_file_system_that_takes_nothing_is_not_asked_for_ever() -> None:
    fs = empty_disk()
    handle = fs.open(DIRECTORY / "file", writable=True, create=True)
    fs.write_bytes_max = 0
    with pytest.raises(OSError, match="took no bytes") as raised:
        write_all(fs, handle, [b"data"], 0)
    assert raised.value.errno == errno.EIO


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_is_written_where_it_belongs_however_little_is_taken_at_once(size: int) -> None:
    fs = empty_disk()
    handle = fs.open(DIRECTORY / "file", writable=True, create=True)
    fs.write_bytes_max = size
    write_all(fs, handle, [b"", b"abcd", b"efg"], 2)
    assert fs.contents(DIRECTORY / "file") == b"\0\0abcdefg"


def test_what_is_locked_is_locked_for_others_as_long_as_it_is_open(path: Path) -> None:
    fs = RealFileSystem()
    for lock in (fs.try_lock, fs.try_record_lock):
        first, second = (fs.open(path, writable=True, create=True) for _ in range(2))
        assert lock(first)
        assert lock(first), "the same one again"
        assert not lock(second)
        fs.close(fs.open(path))
        assert not lock(second), "that another one was closed ends no lock"
        fs.close(first)
        assert lock(second)
        fs.close(second)


def test_a_lock_that_fails_is_an_error_unless_there_are_none_of_its_kind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = RealFileSystem()
    handle = fs.open(path, writable=True, create=True)

    def failing(number: int) -> None:
        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "fcntl", fail)

    failing(errno.EINVAL)
    assert fs.try_record_lock(handle)
    failing(errno.ENOLCK)
    with pytest.raises(OSError, match=os.strerror(errno.ENOLCK)):
        fs.try_record_lock(handle)
    fs.close(handle)


def test_a_file_that_is_deleted_has_no_name_and_one_that_is_moved_has(path: Path) -> None:
    fs = RealFileSystem()
    handle = fs.open(path, writable=True, create=True)
    assert not fs.is_deleted(handle)
    path = path.rename(path.with_name("moved"))
    assert not fs.is_deleted(handle)
    path.unlink()
    assert fs.is_deleted(handle)
    fs.close(handle)
