"""meta.properties: whose directory this is. Java-properties text, read by Kafka's tools too.

| key | meaning |
|---|---|
| version | 1; 0 or absent is the old form with broker.id; others are refused |
| cluster.id | absent until the first leader's has reached this node through the log |
| node.id | must be the configured one; broker.id is read too |
| storage.id | the directory's uuid; directory.id holds the same value for Kafka's tools |
| log.owner | kafka: this node follows a real Kafka quorum; else quorumd, also if absent from quorumd's own |
| bootstrap | true: formatted as part of a new quorum, may campaign before the log names voters |
| initial.voters | id@host:port:storage-id,...: who these are, if not those of quorum.voters |
| removed | true: was a voter, and was removed on purpose; does not join again by itself |
| started | true: the node has run, so that quorum-state.json and a storage id are never missing again |

Unknown keys are kept when the file is rewritten.
Source: KIP-856, "Log Directory Storage UUID"; KIP-631 (meta.properties version 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from random import SystemRandom
from uuid import UUID

from quorumd.config import java_properties
from quorumd.raft.types import uuid_from_text, uuid_to_text
from quorumd.storage.errors import DamagedFile, ForeignDirectory, NotFormatted, from_os_error
from quorumd.storage.filesystem import FileSystem, read_file, replace_file
from quorumd.storage.layout import (
    META_PROPERTIES,
    QUORUM_STATE,
    kafkas_own_files,
    partition_directory,
)
from quorumd.wire.schema import ZERO_UUID

_OWN_KEYS = frozenset(
    {
        "version",
        "cluster.id",
        "node.id",
        "broker.id",
        "storage.id",
        "directory.id",
        "log.owner",
        "bootstrap",
        "initial.voters",
        "removed",
        "started",
    }
)


class LogOwner(Enum):
    """Owner of the log in a directory: a quorumd quorum, or a real Kafka quorum."""

    QUORUMD = "quorumd"
    KAFKA = "kafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """The contents. `cluster_id` is None while it is not known; `others` are unknown keys."""

    node_id: int
    storage_id: UUID
    cluster_id: str | None = None
    log_owner: LogOwner = LogOwner.QUORUMD
    bootstrap: bool = False
    initial_voters: str = ""
    removed: bool = False
    has_started: bool = False
    others: tuple[tuple[str, str], ...] = ()


_system_random = SystemRandom()


def random_storage_id(draw: Callable[[int], int] = _system_random.randrange) -> UUID:
    """A version 4 uuid whose text does not begin with '-', which command lines would misread.

    `draw(n)` returns a random integer in [0, n).
    """
    while uuid_to_text(found := UUID(int=draw(1 << 128), version=4)).startswith("-"):
        pass
    return found


def load_meta_properties(
    fs: FileSystem, storage_dir: Path, *, new_storage_id: Callable[[], UUID] = random_storage_id
) -> MetaProperties:
    """Reads the file of a node's own directory; one without storage id gets one before the first start.

    Raises NotFormatted if there is no file, DamagedFile if it can't be understood or has lost the id,
    ForeignDirectory if a Kafka node wrote it.
    """
    pairs, meta = _read(fs, storage_dir)
    if "log.owner" not in pairs:
        _refuse_kafkas_own(fs, storage_dir)
    if meta.storage_id == ZERO_UUID:
        if has_started(fs, storage_dir, meta):
            raise missing_storage_id(storage_dir)
        meta = replace(meta, storage_id=new_storage_id())
        save_meta_properties(fs, storage_dir, meta)
    return meta


def has_started(fs: FileSystem, storage_dir: Path, meta: MetaProperties) -> bool:
    """True if the node has run: a file that was cut off does not say so any more, the quorum state does."""
    return meta.has_started or fs.exists(partition_directory(storage_dir) / QUORUM_STATE)


def missing_storage_id(storage_dir: Path) -> DamagedFile:
    """The damage of a file of a node that has run, and says no more which replica it is."""
    return DamagedFile(
        "storage.id and directory.id are missing: a new one would make this node another replica",
        path=storage_dir / META_PROPERTIES,
        remedy="Put storage.id back, as `quorumctl describe --replication` shows it (ReplicaUuid)",
    )


def read_meta_properties(fs: FileSystem, storage_dir: Path) -> MetaProperties:
    """Reads the file, Kafka's too, and leaves it as it is: one without storage id has the zero uuid.

    Raises NotFormatted, DamagedFile.
    """
    return _read(fs, storage_dir)[1]


def _read(fs: FileSystem, storage_dir: Path) -> tuple[dict[str, str], MetaProperties]:
    path = storage_dir / META_PROPERTIES
    try:
        text = read_file(fs, path).decode("latin-1")
    except FileNotFoundError:
        raise NotFormatted(
            "the directory is not formatted: there is no such file",
            path=path,
            remedy="Run `quorumd format --config FILE`, or correct storage.dir",
        ) from None
    except OSError as error:
        raise from_os_error(error, path, "reading") from error
    try:
        pairs = java_properties.parse(text)
        return pairs, _from_pairs(pairs, _storage_id(pairs) or ZERO_UUID)
    except ValueError as error:
        raise DamagedFile(
            str(error), path=path, remedy="Correct the file by hand, or restore it from a backup"
        ) from None


def _refuse_kafkas_own(fs: FileSystem, storage_dir: Path) -> None:
    """Refuses a controller's directory: a node that led with it would write what ends every controller."""
    try:
        found = [path.name for path in kafkas_own_files(storage_dir) if fs.exists(path)]
    except OSError as error:
        raise from_os_error(error, storage_dir, "opening") from error
    if found:
        raise ForeignDirectory(
            f"the directory belongs to a Kafka node: there are its {found[0]}, and no log.owner in"
            f" {META_PROPERTIES}",
            path=storage_dir,
            remedy="Choose an empty storage.dir; to copy the log of that node's quorum, run"
            " `quorumd format --kafka-log --cluster-id ID --config FILE` under a node.id of its own",
        )


def save_meta_properties(fs: FileSystem, storage_dir: Path, meta: MetaProperties) -> None:
    """Replaces the file atomically and durably. Raises as `replace_file` does."""
    storage_id = uuid_to_text(meta.storage_id)
    pairs = {"version": "1", "node.id": str(meta.node_id)}
    if meta.cluster_id is not None:
        pairs["cluster.id"] = meta.cluster_id
    pairs |= {
        "storage.id": storage_id,
        "directory.id": storage_id,
        "log.owner": meta.log_owner.value,
        "bootstrap": "true" if meta.bootstrap else "false",
    }
    if meta.initial_voters:
        pairs["initial.voters"] = meta.initial_voters
    if meta.removed:
        pairs["removed"] = "true"
    if meta.has_started:
        pairs["started"] = "true"
    pairs |= dict(meta.others)
    text = "# Written by quorumd; says whose directory this is.\n" + java_properties.render(pairs)
    replace_file(fs, storage_dir / META_PROPERTIES, text.encode("ascii"))


def _from_pairs(pairs: dict[str, str], storage_id: UUID) -> MetaProperties:
    version = pairs.get("version", "0")
    if version not in ("0", "1"):
        raise ValueError(f"version is {version!r}; this quorumd reads 0 and 1")
    owner = pairs.get("log.owner", LogOwner.QUORUMD.value)
    if owner not in ("quorumd", "kafka"):
        raise ValueError(f"log.owner is {owner!r} instead of quorumd or kafka")
    return MetaProperties(
        node_id=_node_id(pairs),
        storage_id=storage_id,
        cluster_id=pairs.get("cluster.id") or None,
        log_owner=LogOwner(owner),
        bootstrap=_flag(pairs, "bootstrap"),
        initial_voters=pairs.get("initial.voters", ""),
        removed=_flag(pairs, "removed"),
        has_started=_flag(pairs, "started"),
        others=tuple((key, value) for key, value in pairs.items() if key not in _OWN_KEYS),
    )


def _flag(pairs: dict[str, str], key: str) -> bool:
    text = pairs.get(key, "false")
    if text not in ("true", "false"):
        raise ValueError(f"{key} is {text!r} instead of true or false")
    return text == "true"


def _node_id(pairs: dict[str, str]) -> int:
    texts = {pairs[key] for key in ("node.id", "broker.id") if key in pairs}
    if not texts:
        raise ValueError("node.id is missing")
    if len(texts) > 1:
        raise ValueError("node.id and broker.id differ")
    text = texts.pop()
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 31):
        raise ValueError(f"node.id is {text!r} instead of a number from 0 to {(1 << 31) - 1}")
    return int(text)


def _storage_id(pairs: dict[str, str]) -> UUID | None:
    found = {uuid_from_text(pairs[key]) for key in ("storage.id", "directory.id") if key in pairs}
    if len(found) > 1:
        raise ValueError("storage.id and directory.id differ")
    if ZERO_UUID in found:
        raise ValueError("storage.id is the zero uuid")
    return found.pop() if found else None
