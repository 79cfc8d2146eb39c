"""Where a node listens, and where others are: the values that addresses of the configuration become."""

from __future__ import annotations

from typing import NamedTuple

from quorumd.raft.types import Address


class Listener(NamedTuple):
    """A named address, as in `CONTROLLER://host:9093`; the name is upper case."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{Address(self.host, self.port)}"


class ConfiguredVoter(NamedTuple):
    """One entry of `quorum.voters`: the id of a voter and where it is reached."""

    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.id}@{Address(self.host, self.port)}"
