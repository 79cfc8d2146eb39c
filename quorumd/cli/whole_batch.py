"""Appends of commands that are one batch, all or nothing, and only if keys are unchanged or absent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from quorumd.cli.append import opened
from quorumd.cli.options import Target, run_async
from quorumd.cli.text import jsonable, printable, to_json

if TYPE_CHECKING:
    from quorumd.wire.records import Record


FILE_BYTES_MAX = 64 << 20
"""JSON takes up to six bytes for one, and no quorum takes a batch of more than 8 MiB."""


def read_whole(path: str) -> bytes:
    """The file, or standard input for -. Raises ClickException if no batch could hold it."""
    with opened(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise click.ClickException(
            f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB, and all of it would be one batch, of 8 MiB at"
            " the most: split it"
        )
    return data


def append_whole(
    target: Target,
    records: Sequence[Record],
    since: int | None,
    named: Sequence[bytes] = (),
    *,
    output: str,
    timeout_ms: int,
    if_absent: bool = False,
) -> int:
    """Appends one batch and prints its last offset, or the conflict; returns the exit code."""
    from quorumd.client.errors import Conflict

    started = time.monotonic()
    try:
        offsets = run_async(
            _append(target, records, since, named, timeout_ms=timeout_ms, if_absent=if_absent)
        )
    except Conflict as conflict:
        if output == "json":
            at = {"key": jsonable(conflict.key), "offset": conflict.offset}
            click.echo(to_json({"conflict": at}))
        click.echo(f"conflict: {printable(conflict.key)} {conflict.reason}", err=True)
        return conflict.exit_code
    if output == "json":
        done: dict[str, Any] = {
            "records": len(offsets),
            "first_offset": offsets[0],
            "last_offset": offsets[-1],
            "seconds": round(time.monotonic() - started, 3),
        }
        click.echo(to_json(done))
    else:
        click.echo(offsets[-1])
    return 0


async def _append(
    target: Target,
    records: Sequence[Record],
    since: int | None,
    named: Sequence[bytes],
    *,
    timeout_ms: int,
    if_absent: bool,
) -> list[int]:
    from quorumd.cli.key_value_state import read_key_value_state
    from quorumd.client.client import LATEST
    from quorumd.client.errors import Conflict
    from quorumd.client.view import KeyValueMap

    async with target.client(timeout_ms) as client:
        if if_absent:
            keys = {record.key for record in records}
            view = KeyValueMap(key_filter=keys.__contains__)
            end_offset = (await client.list_offsets(LATEST)).offset
            await read_key_value_state(client, view, end_offset, end_offset)
            for key, entry in view.entries.items():
                raise Conflict(key, entry.offset)
            since = view.offset
        try:
            return await client.append(
                records, if_unchanged_since=since, also_unchanged=named, whole=True
            )
        except asyncio.CancelledError:
            text = "the change may be in the log: read again before you decide"
            click.echo(f"interrupted: {text}", err=True)
            raise
