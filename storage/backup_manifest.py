"""backup.json: what a backup holds. A backup without it, or with another file than it says, is none.

One JSON object: version 1, the cluster id, the offsets that the log part has (end exclusive), the epoch
of the record before the end, when it was made (UTC), the files with sizes and SHA-256, and last of all
the SHA-256 of everything above it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quorumd.storage import layout
from quorumd.storage.errors import DamagedFile, StorageError, from_os_error
from quorumd.storage.filesystem import FileSystem, read_file

VERSION = 1
_REMEDY = "Use another backup; nothing was changed"
_DIGEST_CHARACTERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupFile:
    """A segment or a snapshot of a backup; `sha256` is in hex."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupManifest:
    """See the module. The log has `start_offset` .. `end_offset` (exclusive).

    `cluster_id` is "" if the quorum did not say it. Times are text, UTC.
    """

    cluster_id: str
    start_offset: int
    end_offset: int
    epoch: int
    begun_at: str
    ended_at: str
    files: tuple[BackupFile, ...]

    @property
    def segments(self) -> tuple[BackupFile, ...]:
        """Ascending by offset."""
        return tuple(file for file in self.files if not _is_snapshot(file.name))

    @property
    def snapshot(self) -> BackupFile | None:
        found = [file for file in self.files if layout.parse_snapshot_name(file.name)]
        return found[0] if found else None

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)


def render_manifest(manifest: BackupManifest) -> bytes:
    """The bytes of the file."""
    fields = {"version": VERSION, **asdict(manifest)}
    return _render({**fields, "sha256": _digest(fields)})


def parse_manifest(data: bytes) -> BackupManifest:
    """The inverse. Raises ValueError."""
    try:
        fields = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    version = _get(fields, "version", int)
    if version != VERSION:
        raise ValueError(f"version is {version}; this quorumd reads {VERSION}")
    digest = fields.pop("sha256", None)
    if digest != _digest(fields):
        raise ValueError("its own sha256 is not that of its contents")
    files = tuple(map(_file_from, _get(fields, "files", list)))
    names = [file.name for file in files]
    if len(set(names)) != len(names) or sum(map(_is_snapshot, names)) > 1:
        raise ValueError("a file is named twice, or there is more than one snapshot")
    return BackupManifest(
        cluster_id=_get(fields, "cluster_id", str),
        start_offset=_number(fields, "start_offset"),
        end_offset=_number(fields, "end_offset"),
        epoch=_number(fields, "epoch"),
        begun_at=_get(fields, "begun_at", str),
        ended_at=_get(fields, "ended_at", str),
        files=tuple(sorted(files, key=lambda file: (not _is_snapshot(file.name), file.name))),
    )


def load_manifest(fs: FileSystem, backup: Path) -> BackupManifest:
    """The manifest of the backup in a directory.

    Raises DamagedFile if it can't be understood, StorageError if there is none.
    """
    path = backup / layout.BACKUP_MANIFEST
    try:
        return parse_manifest(read_file(fs, path))
    except (FileNotFoundError, NotADirectoryError):
        raise StorageError(
            f"this is no backup: there is no {layout.BACKUP_MANIFEST}",
            path=backup,
            remedy="Name a directory that `quorumctl backup` has made",
        ) from None
    except OSError as error:
        raise from_os_error(error, path, "reading") from error
    except ValueError as error:
        raise DamagedFile(f"unreadable: {error}", path=path, remedy=_REMEDY) from None


def _file_from(fields: Any) -> BackupFile:
    if not isinstance(fields, dict):
        raise ValueError("a file is no JSON object")
    file = BackupFile(
        name=_get(fields, "name", str),
        size_bytes=_number(fields, "size_bytes"),
        sha256=_get(fields, "sha256", str),
    )
    if not _is_snapshot(file.name) and layout.parse_log_name(file.name) is None:
        raise ValueError(f"{file.name!r} is the name of no segment and no snapshot")
    if len(file.sha256) != _DIGEST_CHARACTERS:
        raise ValueError(f"the sha256 of {file.name} has {len(file.sha256)} characters")
    return file


def _is_snapshot(name: str) -> bool:
    return layout.parse_snapshot_name(name) is not None


def _get(fields: dict[str, Any], name: str, kind: type) -> Any:
    value = fields.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}")
    return value


def _number(fields: dict[str, Any], name: str) -> int:
    value = _get(fields, name, int)
    if not 0 <= value < 1 << 63:
        raise ValueError(f"{name} is {value}")
    return int(value)


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(_render(fields)).hexdigest()


def _render(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, indent=2).encode() + b"\n"
