"""The addresses of a quorum: `host:port` lists as users write them.

Knows no socket. The form is the one of Kafka's bootstrap.servers, IPv6 in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from quorumd.raft.types import Address

_BARE_IPV6 = re.compile("[0-9a-fA-F]*:[0-9a-fA-F]*:.*")


def parse_addresses(text: str) -> tuple[Address, ...]:
    """The addresses of `host:port,host:port`, in order and each once.

    Raises ValueError with a sentence that names the part that is wrong.
    """
    parts = [part.strip() for part in text.split(",")]
    return tuple(dict.fromkeys(check_addresses(_parse_address(part) for part in parts if part)))


def check_addresses(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """The addresses. Raises ValueError if there are none, TypeError for anything else among them."""
    found = tuple(addresses)
    if not found:
        raise ValueError("no address is given: expected host:port, or several separated by commas")
    for each in found:
        if not isinstance(each, Address):
            raise TypeError(
                f"{each!r} among the bootstrap servers is of type {type(each).__name__}: give one text,"
                " host:port,host:port, or Addresses"
            )
    return found


def _parse_address(part: str) -> Address:
    if "://" in part:
        part = part.partition("://")[2]
    host, colon, port_text = part.rpartition(":")
    if not colon:
        raise ValueError(f"{part!r} has no port: expected host:port, such as {part}:9093")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif _BARE_IPV6.fullmatch(host):
        raise ValueError(f"{part!r}: an IPv6 address needs brackets, such as [::1]:9093")
    elif ":" in host:
        raise ValueError(
            f"{part!r}: {host!r} is no host: expected host:port, or several separated by commas"
        )
    if not host or any(character.isspace() for character in host):
        raise ValueError(f"{part!r} has no host: expected host:port")
    if not (port_text.isascii() and port_text.isdigit()) or not 0 < int(port_text) < 65536:
        raise ValueError(f"{part!r}: {port_text!r} is no port; a port is a number from 1 to 65535")
    return Address(host, int(port_text))
