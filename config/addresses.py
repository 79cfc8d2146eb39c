"""Where a node listens, and where others are: the values that addresses of the configuration become."""

from __future__ import annotations

from typing import NamedTuple


class HostAndPort(NamedTuple):
    """A host name or IP address (IPv6 without brackets) and a TCP port.

    An empty host occurs only in addresses to listen on, and means every interface.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return _host_and_port(self.host, self.port)


class Listener(NamedTuple):
    """A named address, as in `CONTROLLER://host:9093`; the name is upper case."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{_host_and_port(self.host, self.port)}"


class ConfiguredVoter(NamedTuple):
    """One entry of `quorum.voters`: the id of a voter and where it is reached."""

    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.id}@{_host_and_port(self.host, self.port)}"


def _host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
