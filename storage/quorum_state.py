"""quorum-state.json: epoch, leader and vote, which must survive everything.

One JSON object, replaced atomically and synced before anything that depends on it leaves the node.
Written is data_version 1 of KIP-856: clusterId, leaderId, leaderUuid, leaderEpoch, votedId,
votedUuid, appliedOffset. Read are also data_version 0 (KIP-595) and Kafka's own `quorum-state` in
both its versions; the latter only while there is no quorum-state.json. Sentinels (-1, "" and the
zero uuid) stay in the file: in memory they are None.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from quorumd.raft.types import uuid_from_text, uuid_to_text
from quorumd.storage.errors import DamagedFile, from_os_error
from quorumd.storage.filesystem import FileSystem, read_file, replace_file
from quorumd.storage.layout import KAFKA_QUORUM_STATE, QUORUM_STATE
from quorumd.wire.schema import ZERO_UUID

_NO_UUID = uuid_to_text(ZERO_UUID)
_REMEDY = (
    "Without it this node could vote twice in an epoch, and an old copy is no better. Format a new"
    " directory (without --bootstrap), and join as a new replica"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumState:
    """The content of quorum-state.json: the epoch, leader and vote that a replica must not forget.

    `applied_offset` is a committed end offset (exclusive) known when the file was last written: the
    log must never end below it. Without a file: epoch 0, no leader, no vote.
    """

    cluster_id: str | None = None
    leader_id: int | None = None
    leader_uuid: UUID | None = None
    leader_epoch: int = 0
    voted_id: int | None = None
    voted_uuid: UUID | None = None
    applied_offset: int = 0


def load_quorum_state(fs: FileSystem, directory: Path) -> QuorumState | None:
    """The state in a partition directory, or None if there is no file of either name.

    Raises DamagedFile if the file is there and can't be understood: it is never taken for empty.
    """
    for name in (QUORUM_STATE, KAFKA_QUORUM_STATE):
        path = directory / name
        try:
            data = read_file(fs, path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise from_os_error(error, path, "reading") from error
        try:
            return parse_quorum_state(data, is_kafkas=name == KAFKA_QUORUM_STATE)
        except ValueError as error:
            raise DamagedFile(f"unreadable: {error}", path=path, remedy=_REMEDY) from None
    return None


def missing_quorum_state(directory: Path) -> DamagedFile:
    """The error for a node that has run before, in whose partition directory there is no file."""
    return DamagedFile(
        "missing, though this node has run before: its log is lost, or on a disk that is not mounted",
        path=directory / QUORUM_STATE,
        remedy=f"Mount the disk, if that is it. {_REMEDY}",
    )


def save_quorum_state(fs: FileSystem, directory: Path, state: QuorumState) -> None:
    """Replaces quorum-state.json atomically and durably. Raises as `replace_file` does."""
    replace_file(fs, directory / QUORUM_STATE, render_quorum_state(state))


def render_quorum_state(state: QuorumState) -> bytes:
    """The bytes of the file, data_version 1."""
    fields = {
        "clusterId": state.cluster_id or "",
        "leaderId": -1 if state.leader_id is None else state.leader_id,
        "leaderUuid": uuid_to_text(state.leader_uuid or ZERO_UUID),
        "leaderEpoch": state.leader_epoch,
        "votedId": -1 if state.voted_id is None else state.voted_id,
        "votedUuid": uuid_to_text(state.voted_uuid or ZERO_UUID),
        "appliedOffset": state.applied_offset,
        "data_version": 1,
    }
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def parse_quorum_state(data: bytes, *, is_kafkas: bool = False) -> QuorumState:
    """Reads the first line. `is_kafkas`: data_version 1 is Kafka's, with votedDirectoryId.

    Raises ValueError.
    """
    try:
        fields = json.loads(data.split(b"\n", 1)[0])
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    version = _integer(fields, "data_version", minimum=0)
    if version > 1:
        raise ValueError(f"data_version {version} is not known")
    is_ours = version == 1 and not is_kafkas
    voted_uuid = None
    if version == 1:
        voted_uuid = _uuid(fields, "votedUuid" if is_ours else "votedDirectoryId")
    has_offset = not (version == 1 and is_kafkas)
    return QuorumState(
        cluster_id=_text(fields, "clusterId") if has_offset else None,
        leader_id=_id(fields, "leaderId"),
        leader_uuid=_uuid(fields, "leaderUuid") if is_ours else None,
        leader_epoch=_integer(fields, "leaderEpoch", minimum=0, bits=31),
        voted_id=_id(fields, "votedId"),
        voted_uuid=voted_uuid,
        applied_offset=_integer(fields, "appliedOffset", minimum=0) if has_offset else 0,
    )


def _value(fields: dict[str, Any], name: str) -> Any:
    if name not in fields:
        raise ValueError(f"{name} is missing")
    return fields[name]


def _integer(fields: dict[str, Any], name: str, *, minimum: int, bits: int = 63) -> int:
    value, maximum = _value(fields, name), (1 << bits) - 1
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise ValueError(f"{name} is {value!r} instead of a number from {minimum} to {maximum}")
    return value


def _id(fields: dict[str, Any], name: str) -> int | None:
    value = _integer(fields, name, minimum=-1, bits=31)
    return None if value == -1 else value


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = _value(fields, name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is {value!r} instead of a text")
    return value or None


def _uuid(fields: dict[str, Any], name: str) -> UUID | None:
    text = _text(fields, name)
    return None if text is None or text == _NO_UUID else uuid_from_text(text)
