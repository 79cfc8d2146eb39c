"""Manifests name the data files of the tables. A file that no manifest names does not exist for readers.

There are two chains of them, `log` and `state`, numbered without a gap. A manifest covers the offsets from
where the one before ended to its own end, and appears by one rename: a range of the log is in the tables
completely, once, or not at all. One that begins at offset 0 names all files that there are, and those
with smaller numbers count no more. Nothing here writes data files, and nothing needs Spark.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from quorumd.pipeline.errors import PipelineError
from quorumd.pipeline.tables.schemas import APPENDED, CHAIN_OF, TABLES
from quorumd.storage.filesystem import RealFileSystem

FORMAT: Final = 1
MARKER: Final = "quorumd-tables.json"
CHAINS: Final = ("log", "state")
_FOLDER = "manifests"
_DIGITS = 10
_NAME: Final = re.compile(rf"[0-9]{{{_DIGITS}}}\.json")


class NoTables(PipelineError):
    """A folder that holds no tables of ours, or those of a newer version."""

    exit_code = 2


class DamagedTables(PipelineError):
    """A manifest that is missing or can't be read."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file; `path` is relative to the folder of the tables, both offsets are inclusive.

    The offsets are None if the table's rows are not in the order of the log.
    """

    path: str
    rows: int
    size_bytes: int
    first_offset: int | None = None
    last_offset: int | None = None


class Arrival(NamedTuple):
    """When a batch's last record was in the tables, and the time that it carries, both in ms."""

    written_ms: int
    newest_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Offsets `start_offset` to `end_offset` (exclusive), and the files that came with them.

    From `complete_from` on every record of the log is there; below it only what a snapshot had left.
    `written_ms` is when this was written; `arrivals` are those of its batches, the last ones if there
    are many. `last_crcs` are those of the batches with the last offset: what the next run begins behind.
    """

    chain: str
    number: int
    start_offset: int
    end_offset: int
    complete_from: int
    written_ms: int
    arrivals: tuple[Arrival, ...] = ()
    rows: int = 0
    last_crcs: tuple[int, ...] = ()
    files: Mapping[str, tuple[DataFile, ...]] = field(default_factory=dict)

    def to_json(self) -> str:
        """One JSON object, the text of the manifest's file."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1) + "\n"


def manifest_path(folder: Path, chain: str, number: int) -> Path:
    """The file of a manifest."""
    return folder / _FOLDER / chain / f"{number:0{_DIGITS}d}.json"


def check_folder(folder: Path) -> None:
    """Raises NoTables if these are no tables."""
    try:
        found = json.loads((folder / MARKER).read_text())
    except (FileNotFoundError, NotADirectoryError):
        what = "has no tables" if folder.is_dir() else "is no folder"
        raise NoTables(
            f"{folder} {what}: make them with quorumd-pipeline run or batch, --output {folder}"
        ) from None
    except (OSError, ValueError) as error:
        raise NoTables(f"{folder / MARKER} can't be read: {error}") from None
    if not isinstance(found, dict):
        raise NoTables(f"{folder / MARKER} can't be read: it is no JSON object")
    if found.get("format") != FORMAT:
        raise NoTables(
            f"{folder} holds tables of the format {found.get('format')}, and this version of quorumd "
            f"knows {FORMAT}: use the one that made them"
        )


def newest(folder: Path, chain: str) -> Manifest | None:
    """The last manifest of a chain, None if there is none. Raises DamagedTables."""
    numbers = _numbers(folder, chain)
    return _read(folder, chain, numbers[-1]) if numbers else None


def read_chain(folder: Path, chain: str) -> list[Manifest]:
    """The valid manifests of a chain, in order; the first begins at offset 0. Raises DamagedTables."""
    numbers = _numbers(folder, chain)
    found: list[Manifest] = []
    for number in range(numbers[-1] if numbers else -1, -1, -1):
        if number not in numbers:
            raise DamagedTables(f"{manifest_path(folder, chain, number)} is missing. {_REBUILD}")
        manifest = _read(folder, chain, number)
        if found and manifest.end_offset != found[-1].start_offset:
            raise DamagedTables(
                f"{manifest_path(folder, chain, number + 1)} begins at offset {found[-1].start_offset}, "
                f"and the one before ends at {manifest.end_offset}. {_REBUILD}"
            )
        found.append(manifest)
        if not manifest.start_offset:
            break
    return found[::-1]


def read_replaced(folder: Path, chain: str) -> list[Manifest]:
    """The manifests that were replaced and not deleted yet, in order. Raises DamagedTables."""
    counting = read_chain(folder, chain)
    return [
        _read(folder, chain, number)
        for number in _numbers(folder, chain)
        if counting and number < counting[0].number
    ]


def data_files(folder: Path, table: str) -> list[DataFile]:
    """The files that are the table now, in the order of the log, each there and of its size.

    Raises NoTables, DamagedTables.
    """
    found = named_files(folder, table)
    for file in found:
        _check_whole(folder / file.path, file.size_bytes)
    return found


def named_files(folder: Path, table: str) -> list[DataFile]:
    """As `data_files`, as the manifests say: no file is looked at."""
    if table not in TABLES:
        raise NoTables(f"there is no table {table}; the tables are {', '.join(TABLES)}")
    check_folder(folder)
    if table in APPENDED:
        manifests = read_chain(folder, CHAIN_OF[table])
    else:
        last = newest(folder, CHAIN_OF[table])
        manifests = [] if last is None else [last]
    return [each for manifest in manifests for each in manifest.files.get(table, ())]


def check_whole(folder: Path) -> None:
    """Raises DamagedTables if a manifest or a file of any table is missing, or not as it was written."""
    if newest(folder, "log") is None and newest(folder, "state") is not None:
        raise DamagedTables(f"{manifest_path(folder, 'log', 0)} is missing. {_REBUILD}")
    for table in TABLES:
        data_files(folder, table)


def _check_whole(path: Path, size_bytes: int) -> None:
    try:
        found_bytes = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise DamagedTables(f"{path} is missing, and a manifest names it. {_REBUILD}") from None
    if found_bytes != size_bytes:
        raise DamagedTables(f"{path} has {found_bytes} bytes and not {size_bytes}. {_REBUILD}")


def table_files(folder: str | os.PathLike[str], table: str) -> list[str]:
    """The paths of the Parquet files that are the table now, in the order of the log.

    What any engine should read. Raises NoTables, DamagedTables.
    """
    return [str(Path(folder) / each.path) for each in data_files(Path(folder), table)]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Makes the manifest valid, atomically and durably. The caller holds the commit lock."""
    path = manifest_path(folder, manifest.chain, manifest.number)
    assert not path.exists(), f"{path} was written before"
    write_durably(path, manifest.to_json())


def write_durably(path: Path, text: str) -> None:
    """Creates the file with this text, atomically. Raises OSError."""
    part = path.with_name(f"_{path.name}.{os.getpid()}")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    RealFileSystem().fsync_directory(path.parent)


_REBUILD = "The tables are damaged: build them anew in another folder"


def _numbers(folder: Path, chain: str) -> list[int]:
    try:
        names = os.listdir(folder / _FOLDER / chain)
    except FileNotFoundError:
        raise DamagedTables(f"{folder / _FOLDER / chain} is missing. {_REBUILD}") from None
    return sorted(int(name[:_DIGITS]) for name in names if _NAME.fullmatch(name))


def _read(folder: Path, chain: str, number: int) -> Manifest:
    path = manifest_path(folder, chain, number)
    try:
        found = json.loads(path.read_text())
        return _manifest(found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedTables(f"{path} can't be read ({error}). {_REBUILD}") from None


def _manifest(found: dict[str, Any]) -> Manifest:
    if found.pop("format") != FORMAT:
        raise ValueError("another format")
    files = {
        table: tuple(DataFile(**each) for each in given)
        for table, given in found.pop("files").items()
    }
    found["last_crcs"] = tuple(found["last_crcs"])
    found["arrivals"] = tuple(Arrival(*each) for each in found["arrivals"])
    return Manifest(**found, files=files)
