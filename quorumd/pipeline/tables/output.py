"""The folder of the tables: created, locked by one run at a time, and cleaned of invalid files.

`lock` is held by the process that runs, so the kernel lets go of it whatever ends it. But workers of a
run that was killed may live on for a moment: what makes a manifest count checks, under a lock of its own,
that the run which it belongs to still is the one that `lock` names.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from quorumd.pipeline.errors import PipelineError
from quorumd.pipeline.tables.manifests import (
    CHAINS,
    FORMAT,
    MARKER,
    DataFile,
    Manifest,
    check_folder,
    check_whole,
    manifest_path,
    newest,
    read_chain,
    read_replaced,
    write_durably,
)
from quorumd.pipeline.tables.schemas import APPENDED, TABLES

LOCK: Final = "lock"
COMMIT_LOCK: Final = "commit.lock"
WORK: Final = "work"
"""The work files of a run; deleted by the next run."""
REPLACED_KEPT_S: Final = 600.0
"""Time for which a replaced file is kept for queries that read it."""


class OutputBusy(PipelineError):
    """Another run writes to this folder."""


class OutputUnusable(PipelineError):
    """The folder can't be written, or holds something else."""


class RunReplaced(PipelineError):
    """The run that wrote this has ended, and another one has begun."""


class Output:
    """The folder, while this process holds its lock."""

    def __init__(self, folder: Path, token: str) -> None:
        self.folder = folder
        self.token = token

    @property
    def end_offset(self) -> int:
        """The end (exclusive) of the tables of the log."""
        last = newest(self.folder, "log")
        return last.end_offset if last is not None else 0

    @property
    def last(self) -> Manifest | None:
        """The newest manifest of the log."""
        return newest(self.folder, "log")

    def new_work(self) -> Path:
        """A path for work files of this run."""
        return self.folder / WORK / uuid.uuid4().hex

    def delete_replaced(self) -> None:
        """Deletes files and manifests that were replaced, after the time that queries are given."""
        for chain in CHAINS:
            for path in _outdated(self.folder, chain, time.time() - REPLACED_KEPT_S):
                path.unlink(missing_ok=True)

    def _delete_orphans(self) -> None:
        """Deletes files that no manifest names: no other run can be writing one."""
        shutil.rmtree(self.folder / WORK, ignore_errors=True)
        (self.folder / WORK).mkdir()
        named = {each.path for chain in CHAINS for each in _named(self.folder, chain)}
        for table in TABLES:
            for path in sorted((self.folder / table).iterdir()):
                if f"{table}/{path.name}" not in named and not path.is_dir():
                    path.unlink()
        for chain in CHAINS:
            for part in sorted(manifest_path(self.folder, chain, 0).parent.glob("_*")):
                part.unlink()


@contextmanager
def held_output(folder: Path) -> Iterator[Output]:
    """Creates the folder if necessary, and locks it. Raises OutputBusy, OutputUnusable, DamagedTables."""
    try:
        _make(folder)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise unusable(folder, error) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputBusy(
                f"{folder} is being written by another run, {_holder(handle)}. Stop it first, or name "
                "another --output"
            ) from None
        output = Output(folder, uuid.uuid4().hex)
        with _committing(folder):
            _set_holder(handle, output.token)
        check_whole(folder)
        output._delete_orphans()
        output.delete_replaced()
        yield output
        shutil.rmtree(folder / WORK, ignore_errors=True)
    except OSError as error:
        if error.filename is None or not Path(os.fsdecode(error.filename)).is_relative_to(folder):
            raise
        raise unusable(folder, error) from None
    finally:
        os.close(handle)


@contextmanager
def fenced(folder: Path, token: str) -> Iterator[None]:
    """Inside, the run with this token is the newest and writes alone. Raises RunReplaced."""
    with _committing(folder):
        if f'"{token}"' not in (folder / LOCK).read_text():
            raise RunReplaced(f"another run has begun to write to {folder}")
        yield


def _make(folder: Path) -> None:
    """The folder with all that is in it from the beginning. Raises OutputUnusable, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    there = [name for name in sorted(os.listdir(folder)) if name not in (LOCK, COMMIT_LOCK)]
    if MARKER in there:
        check_folder(folder)
    elif any(name not in (WORK, "manifests", *TABLES) for name in there):
        raise OutputUnusable(
            f"{folder} is not empty and holds no tables of quorumd-pipeline: name a new folder, or an "
            "empty one"
        )
    for name in (WORK, *TABLES):
        (folder / name).mkdir(exist_ok=True)
    if MARKER not in there:
        # Later they are there: tables without manifests are damaged, and not empty.
        for chain in CHAINS:
            manifest_path(folder, chain, 0).parent.mkdir(parents=True, exist_ok=True)
        write_durably(
            folder / MARKER, json.dumps({"format": FORMAT, "tables": list(TABLES)}) + "\n"
        )


def unusable(folder: Path, error: OSError) -> OutputUnusable:
    """The error for a folder that can't be written."""
    where = os.fsdecode(error.filename) if error.filename else folder
    return OutputUnusable(
        f"can't write the tables: {where}: {error.strerror}. Name a folder in --output that you may write to"
    )


@contextmanager
def _committing(folder: Path) -> Iterator[None]:
    handle = os.open(folder / COMMIT_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _set_holder(handle: int, token: str) -> None:
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "token": token}
    os.truncate(handle, 0)
    os.pwrite(handle, (json.dumps(owner) + "\n").encode(), 0)


def _holder(handle: int) -> str:
    try:
        found = json.loads(os.pread(handle, 4096, 0))
        return f"process {found['pid']} on {found['host']}"
    except (ValueError, KeyError):
        return "which has just begun"


def _all(folder: Path, chain: str) -> list[Manifest]:
    return [*read_replaced(folder, chain), *read_chain(folder, chain)]


def _named(folder: Path, chain: str) -> Iterator[DataFile]:
    for manifest in _all(folder, chain):
        for table in sorted(manifest.files):
            yield from manifest.files[table]


def _outdated(folder: Path, chain: str, before_s: float) -> list[Path]:
    """Files replaced before that time: data files, then the manifests that name them, oldest first."""
    found: list[Path] = []
    now: dict[str, set[str]] = {}
    for manifest in _all(folder, chain):
        is_old = manifest.written_ms < before_s * 1000
        for table, files in sorted(manifest.files.items()):
            named = {file.path for file in files}
            there = now.setdefault(table, set())
            if table not in APPENDED or not manifest.start_offset:
                if is_old:
                    found += [folder / path for path in sorted(there - named)]
                there.clear()
            there |= named
    counting = read_chain(folder, chain)
    if counting and counting[0].written_ms < before_s * 1000:
        replaced = read_replaced(folder, chain)
        found += [manifest_path(folder, chain, each.number) for each in replaced]
    return found
