"""Plain values of the field: replicas' keys and endpoints, voter sets, positions in the log.

Knows no message, no file and no rule beyond what makes a value valid.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

_new_tuple: Final = tuple.__new__


def uuid_to_text(value: UUID) -> str:
    """Kafka's text form: 16 bytes as URL-safe base64 without padding, always 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> UUID:
    """The inverse of `uuid_to_text`; padded text is accepted. Raises ValueError on anything else."""
    if len(text) > 24:
        raise ValueError(f"{text!r} is too long for a uuid: expected 22 characters of base64")
    stripped = text.rstrip("=")
    try:
        raw = base64.b64decode(stripped + "=" * (-len(stripped) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{text!r} is not a uuid: expected 22 characters of base64") from error
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a uuid: it holds {len(raw)} bytes instead of 16")
    return UUID(bytes=raw)


class ReplicaKey(NamedTuple):
    """A replica: its id and the uuid of its storage; a uuid of None is one that is not known.

    Source: KIP-856, "Log Directory Storage UUID".
    """

    id: int
    uuid: UUID | None = None

    def __hash__(self) -> int:
        # Keys are hashed several times for every fetch, and two uuids under one id are rare. A leader of a
        # quorum without uuids keeps its voters under both kinds of key: these never meet in a dictionary.
        return self.id if self.uuid is None else ~self.id

    def matches(self, other: ReplicaKey) -> bool:
        """True if both may be the same replica: equal ids, and equal uuids unless one is unknown."""
        return self.id == other.id and (
            self.uuid is None or other.uuid is None or self.uuid == other.uuid
        )

    def sort_key(self) -> tuple[int, int]:
        """A total order that does not depend on the hash seed; an unknown uuid comes first."""
        return self.id, -1 if self.uuid is None else self.uuid.int

    def __str__(self) -> str:
        return f"{self.id}" if self.uuid is None else f"({self.id}, {uuid_to_text(self.uuid)})"


class OffsetAndEpoch(NamedTuple):
    """An end offset (exclusive) and the epoch of the record before it."""

    offset: int
    epoch: int


def position_of(offset: int, epoch: int) -> OffsetAndEpoch:
    """`OffsetAndEpoch(offset, epoch)` for hot paths: that is made by Python, also in machine code."""
    return _new_tuple(OffsetAndEpoch, (offset, epoch))


KAFKA_SNAPSHOT_MAX_BYTES: Final = 2**31
"""A Kafka leader ends when it is asked for a byte of a snapshot behind these."""


class SnapshotId(NamedTuple):
    """Names a snapshot by the log that it stands for: everything below `end_offset` (exclusive)."""

    end_offset: int
    epoch: int

    @property
    def position(self) -> OffsetAndEpoch:
        """The end of the log that it stands for."""
        return OffsetAndEpoch(self.end_offset, self.epoch)

    def __str__(self) -> str:
        return f"{self.end_offset}-{self.epoch}"


class Address(NamedTuple):
    """A host name or IP address (IPv6 without brackets) and a TCP port.

    An empty host occurs only in addresses to listen on, and means every interface.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Endpoint(NamedTuple):
    """One listener of a node, as in `CONTROLLER://host:9093`; `name` is the listener's name, upper case."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{Address(self.host, self.port)}"


@dataclass(frozen=True, slots=True)
class Voter:
    """A member of the voter set, all its listeners, and the kraft.version range that it supports."""

    key: ReplicaKey
    endpoints: tuple[Endpoint, ...] = ()
    min_kraft_version: int = 0
    max_kraft_version: int = 1


@dataclass(frozen=True, slots=True)
class VoterSet:
    """The voters at some point of the log, ordered by key.

    Two storage ids may stand under one id (KIP-856, disk failure recovery). A set that comes from
    configuration has voters without uuid, which match by id alone.
    """

    voters: tuple[Voter, ...] = ()

    @staticmethod
    def of(voters: Iterable[Voter]) -> VoterSet:
        """A set in canonical order. Raises ValueError if a key occurs twice."""
        ordered = tuple(sorted(voters, key=lambda voter: voter.key.sort_key()))
        if len({voter.key for voter in ordered}) != len(ordered):
            raise ValueError("a replica key occurs twice in a voter set")
        return VoterSet(ordered)

    def __len__(self) -> int:
        return len(self.voters)

    def __iter__(self) -> Iterator[Voter]:
        return iter(self.voters)

    @property
    def keys(self) -> tuple[ReplicaKey, ...]:
        """Keys in the order of the set."""
        return tuple(voter.key for voter in self.voters)

    @property
    def ids(self) -> tuple[int, ...]:
        """Each id once, ascending."""
        return tuple(sorted({voter.key.id for voter in self.voters}))

    @property
    def is_by_id(self) -> bool:
        """True if some voter's uuid is not known: the set is one of configuration, not of the log."""
        return any(voter.key.uuid is None for voter in self.voters)

    def find(self, key: ReplicaKey) -> Voter | None:
        """The voter that this key is, or None."""
        for voter in self.voters:
            if voter.key.matches(key):
                return voter
        return None

    def endpoints_of(self, replica_id: int) -> tuple[Endpoint, ...]:
        """The endpoints of the first voter under this id, or none."""
        for voter in self.voters:
            if voter.key.id == replica_id:
                return voter.endpoints
        return ()
