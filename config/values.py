"""Text -> value, one function per kind of value; `BadValue` says what is permitted.

A value from the YAML file and one from the environment are the same text to these functions, so
that both accept and refuse the same things.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from quorumd.config.addresses import ConfiguredVoter
from quorumd.config.errors import BadValue
from quorumd.raft.types import Address, Endpoint

E = TypeVar("E", bound=StrEnum)

MAX_ID = 2**31 - 1
_WHOLE_NUMBER = re.compile(r"-?[0-9]+(_[0-9]+)*")
_LABEL = "[A-Za-z0-9_-]{1,63}"
_HOST_NAME = re.compile(rf"(?!-)(?!.{{255}}){_LABEL}(\.{_LABEL})*(?<!-)\.?")
_BARE_IPV6 = re.compile("[0-9a-fA-F]*:[0-9a-fA-F]*:.*")
_DOTTED_NUMBERS = re.compile(r"[0-9.]+")
_LISTENER_NAME = re.compile(r"[A-Za-z0-9_-]{1,249}")
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})


def is_wildcard(host: str) -> bool:
    """True for a host that means "every interface": one may listen on it but not connect to it."""
    return host in _WILDCARDS


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """Reads whole numbers from `low` to `high`, both inclusive."""

    low: int
    high: int
    unit: str = ""

    def __call__(self, text: str) -> int:
        """The number. Raises BadValue."""
        of_unit = f" of {self.unit}" if self.unit else ""
        permitted = f"a whole number{of_unit} from {self.low} to {self.high}"
        if not _WHOLE_NUMBER.fullmatch(text):
            raise BadValue(f"{_shown(text)} is not {permitted}")
        # Digits beyond any limit are not handed to int(), whose own limit is a different error.
        value = int(text) if len(text) <= 40 else self.high + 1
        if not self.low <= value <= self.high:
            raise BadValue(f"{_shown(text)} is out of range: permitted is {permitted}")
        return value


@dataclass(frozen=True, slots=True)
class Limit:
    """Reads limits from `low` to `high`, both inclusive; -1 is no limit, as in Kafka: None."""

    low: int
    high: int
    unit: str = ""

    def __call__(self, text: str) -> int | None:
        """The limit. Raises BadValue."""
        try:
            return None if text == "-1" else WholeNumber(self.low, self.high, self.unit)(text)
        except BadValue as error:
            raise BadValue(f"{error}, or -1 for no limit") from None


def true_or_false(text: str) -> bool:
    """YAML's words for a boolean, as they stand in the file."""
    if text.lower() not in ("true", "false"):
        raise BadValue(f"{_shown(text)} is neither true nor false")
    return text.lower() == "true"


def folder(text: str) -> Path:
    """A path, still relative if it was written so."""
    return _path(text, "folder")


def file(text: str) -> Path:
    """A path, still relative if it was written so."""
    return _path(text, "file")


def names(text: str) -> tuple[str, ...]:
    """Words, separated by commas."""
    return tuple(_entries(text))


def one_of(kind: type[E]) -> Callable[[str], E]:
    """Reads the value of one member of an enum of texts."""

    def parse(text: str) -> E:
        try:
            return kind(text)
        except ValueError:
            permitted = ", ".join(member.value for member in kind)
            raise BadValue(f"{_shown(text)} is none of {permitted}") from None

    return parse


def identification(text: str) -> str:
    """The check of a host name against a certificate: "https", or "" for none."""
    if text.lower() not in ("", "https"):
        raise BadValue(f"{_shown(text)} is neither https nor empty")
    return text.lower()


def listen_address(text: str) -> Address:
    """`host:port` to listen on; the host may be empty or a wildcard."""
    return _address(text, "host:port, such as 127.0.0.1:8080 or [::1]:8080", may_be_wildcard=True)


def listeners(text: str) -> tuple[Endpoint, ...]:
    """`NAME://host:port`, separated by commas; a host may be empty or a wildcard."""
    return tuple(_listener(entry, may_be_wildcard=True) for entry in _entries(text))


def advertised_listeners(text: str) -> tuple[Endpoint, ...]:
    """`NAME://host:port`, separated by commas; every host must be one that peers can connect to."""
    return tuple(_listener(entry, may_be_wildcard=False) for entry in _entries(text))


def addresses(text: str) -> tuple[Address, ...]:
    """`host:port` of other nodes, separated by commas."""
    form = "host:port, such as db1.example.com:9093 or [::1]:9093"
    return tuple(_address(entry, form, may_be_wildcard=False) for entry in _entries(text))


def voters(text: str) -> tuple[ConfiguredVoter, ...]:
    """`id@host:port`, separated by commas."""
    form = "id@host:port, such as 1@db1.example.com:9093"
    found = []
    for entry in _entries(text):
        id_text, at, rest = entry.partition("@")
        if not at:
            raise BadValue(f"{_shown(entry)} is not of the form {form}")
        try:
            replica_id = WholeNumber(0, MAX_ID)(id_text.strip())
        except BadValue as error:
            raise BadValue(f"the id in {_shown(entry)}: {error}") from None
        found.append(
            ConfiguredVoter(replica_id, *_address(rest.strip(), form, may_be_wildcard=False))
        )
    return tuple(found)


def counts_by_ip(text: str) -> Mapping[str, int]:
    """`ip:count`, separated by commas, by address as `ipaddress` writes it."""
    found: dict[str, int] = {}
    for entry in _entries(text):
        host, _, count = entry.rpartition(":")
        try:
            address = str(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
        except ValueError:
            form = "ip:count, such as 10.0.0.7:100 or [2001:db8::7]:100"
            raise BadValue(f"{_shown(entry)} is not of the form {form}") from None
        if address in found:
            raise BadValue(f"{address} occurs more than once: remove one of them")
        try:
            found[address] = WholeNumber(0, 1_000_000)(count.strip())
        except BadValue as error:
            raise BadValue(f"the count in {_shown(entry)}: {error}") from None
    return found


def _path(text: str, of_what: str) -> Path:
    if not text or "\0" in text:
        raise BadValue(f"{_shown(text)} is not the path of a {of_what}")
    if text.startswith("~"):
        raise BadValue(f"{_shown(text)}: '~' is not expanded, write the whole path")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise BadValue(
            f"{_shown(text)} has a character that no path has in this process ({error.encoding}): use "
            "another name, or set LC_ALL=C.UTF-8"
        ) from None
    return Path(text)


def _entries(text: str) -> list[str]:
    entries = [entry.strip() for entry in text.split(",")]
    if "" in entries:
        raise BadValue(
            f"{_shown(text)} has an empty entry: remove the comma, or write what is missing"
        )
    return entries


def _listener(text: str, *, may_be_wildcard: bool) -> Endpoint:
    form = "NAME://host:port, such as CONTROLLER://db1.example.com:9093"
    name, separator, rest = text.partition("://")
    if not separator or not _LISTENER_NAME.fullmatch(name):
        raise BadValue(f"{_shown(text)} is not of the form {form}")
    return Endpoint(name.upper(), *_address(rest, form, may_be_wildcard=may_be_wildcard))


def _address(text: str, form: str, *, may_be_wildcard: bool) -> Address:
    host, colon, port_text = text.rpartition(":")
    if not colon:
        raise BadValue(f"{_shown(text)} has no port: expected {form}")
    try:
        port = WholeNumber(1, 65535)(port_text)
    except BadValue as error:
        raise BadValue(f"the port in {_shown(text)}: {error}; expected {form}") from None
    if host.startswith("[") and host.endswith("]"):
        host = _ipv6(host[1:-1], text)
    elif _BARE_IPV6.fullmatch(host):
        raise BadValue(
            f"{_shown(text)}: an IPv6 address is written in brackets, such as [::1]:9093"
        )
    elif host:
        _check_host(host, text, form)
    if not may_be_wildcard and is_wildcard(host):
        raise BadValue(
            f"{_shown(text)} names no host that another node could connect to: expected {form}"
        )
    return Address(host, port)


def _ipv6(host: str, text: str) -> str:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise BadValue(f"{_shown(text)}: {_shown(host)} is not an IPv6 address") from None
    return host


def _check_host(host: str, text: str, form: str) -> None:
    if not _HOST_NAME.fullmatch(host):
        raise BadValue(
            f"{_shown(text)}: {_shown(host)} is not a host name or IP address: expected {form}"
        )
    if _DOTTED_NUMBERS.fullmatch(host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise BadValue(f"{_shown(text)}: {_shown(host)} is not an IPv4 address") from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
