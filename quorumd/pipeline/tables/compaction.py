"""Small files are merged into large ones: a batch every ten seconds leaves thousands of both kinds a day.

The neighbours among a table's small files are written once more, as one; then a manifest that names all
files takes the place of those before it. What is in the tables does not change.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from quorumd.pipeline.tables.manifests import (
    CHAINS,
    DataFile,
    Manifest,
    data_files,
    named_files,
    read_chain,
    write_manifest,
)
from quorumd.pipeline.tables.output import Output, fenced
from quorumd.pipeline.tables.parquet import TableWriter
from quorumd.pipeline.tables.schemas import APPENDED, CHAIN_OF

MANIFESTS_MAX: Final = 60
"""A longer chain is made one manifest: with a batch every ten seconds, every ten minutes."""
SMALL_BYTES: Final = 64 << 20
"""A file of this size stays as it is, so that a record is written again only so often."""
MERGED_BYTES: Final = 128 << 20
ARRIVALS_KEPT: Final = 1_000


def compact(output: Output) -> None:
    """Merges small files and manifests, and deletes files that were replaced long enough ago.

    Other processes may commit and read meanwhile. Raises RunReplaced, DamagedTables, OSError.
    """
    for chain in CHAINS:
        if len(read_chain(output.folder, chain)) > MANIFESTS_MAX:
            _merge(output, chain)
    output.delete_replaced()


def _merge(output: Output, chain: str) -> None:
    folder = output.folder
    (table,) = (each for each in APPENDED if CHAIN_OF[each] == chain)
    before = data_files(folder, table)
    merged = [file for group in _groups(before) for file in _as_one(folder, table, group)]
    with fenced(folder, output.token):
        # Whatever was committed since is behind what was merged.
        files = (*merged, *named_files(folder, table)[len(before) :])
        write_manifest(folder, _naming_all(read_chain(folder, chain), table, files))


def _naming_all(manifests: Sequence[Manifest], table: str, files: tuple[DataFile, ...]) -> Manifest:
    """The manifest that replaces these."""
    arrivals = [arrival for each in manifests for arrival in each.arrivals]
    last = manifests[-1]
    return dataclasses.replace(
        last,
        number=last.number + 1,
        start_offset=0,
        written_ms=time.time_ns() // 1_000_000,
        arrivals=tuple(arrivals[-ARRIVALS_KEPT:]),
        rows=sum(file.rows for file in files),
        files={**last.files, table: files},
    )


def _groups(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Groups of neighbours that become one file; a file that is large enough is a group of its own."""
    groups: list[list[DataFile]] = []
    room = 0
    for file in files:
        if file.size_bytes >= SMALL_BYTES or file.size_bytes > room:
            groups.append([])
            room = MERGED_BYTES
        groups[-1].append(file)
        room = 0 if file.size_bytes >= SMALL_BYTES else room - file.size_bytes
    return groups


def _as_one(folder: Path, table: str, files: list[DataFile]) -> list[DataFile]:
    if len(files) == 1:
        return files
    writer = TableWriter(folder, table)
    for file in files:
        with pq.ParquetFile(folder / file.path) as parquet:
            for rows in parquet.iter_batches():
                writer.write(rows)
    return writer.close()
