"""Addresses of other nodes, as the configuration names them."""

from __future__ import annotations

from typing import NamedTuple

from quorumd.raft.types import Address


class ConfiguredVoter(NamedTuple):
    """One entry of `quorum.voters`: the id of a voter and where it is reached."""

    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.id}@{Address(self.host, self.port)}"
