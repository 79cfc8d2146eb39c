"""The voters that a new quorum is formatted with, where configuration does not name them.

Text of the form that Kafka's own tool takes, on the command line and in meta.properties.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumd.config.errors import BadValue
from quorumd.config.values import voters
from quorumd.raft.types import (
    Address,
    Endpoint,
    ReplicaKey,
    Voter,
    VoterSet,
    uuid_from_text,
    uuid_to_text,
)

FORM = "id@host:port:storage-id, such as 1@db1.example.com:9093:JEXY6aqzQY-32P5TStzaFg"


def parse_initial_voters(text: str, listener: str) -> VoterSet:
    """`id@host:port:storage-id`, separated by commas; `listener` is the name of the peers' one.

    Raises BadValue.
    """
    found: dict[int, Voter] = {}
    for entry in text.split(","):
        address, _, uuid_text = entry.strip().rpartition(":")
        try:
            (voter,) = voters(address)
        except BadValue:
            raise BadValue(f"{entry.strip()!r} is not of the form {FORM}") from None
        try:
            uuid = uuid_from_text(uuid_text)
        except ValueError as error:
            raise BadValue(f"the storage id in {entry.strip()!r}: {error}") from None
        if voter.id in found or uuid in {other.key.uuid for other in found.values()}:
            raise BadValue(f"{entry.strip()!r}: each id and each storage id may stand there once")
        if not uuid.int:
            raise BadValue(f"{entry.strip()!r}: a storage id is not zero")
        endpoints = (Endpoint(listener, voter.host, voter.port),)
        found[voter.id] = Voter(ReplicaKey(voter.id, uuid), endpoints)
    return VoterSet.of(found.values())


def render_initial_voters(initial: Iterable[Voter]) -> str:
    """The inverse, by the first endpoint of each."""
    return ",".join(
        f"{voter.key.id}@{Address(voter.endpoints[0].host, voter.endpoints[0].port)}:"
        f"{uuid_to_text(voter.key.uuid)}"
        for voter in initial
        if voter.key.uuid is not None
    )
