"""Request and response headers, read and written with `struct`.

A header's form depends on api key and version alone (quorumd.wire.registry). The client id keeps its old
form in every version; tags in headers are skipped.
Source: KIP-482; KIP-511 (why the response to ApiVersions has no tag section).
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from quorumd.wire.errors import MalformedMessage, UnsupportedVersion
from quorumd.wire.registry import API_VERSIONS_KEY, APIS, response_header_version
from quorumd.wire.varints import read_unsigned_varint

HEADER_TAGS_MAX: Final = 1000

_REQUEST: Final = Struct(">hhih")
_CORRELATION_ID: Final = Struct(">i")
_LIMITS: Final = {key: (spec.min_version, spec.max_version) for key, spec in APIS.items()}
_FLEXIBLE_FROM: Final = {key: spec.flexible_from for key, spec in APIS.items()}


class RequestHeader(NamedTuple):
    """The client, the API and its version; a client id of null reads as ""."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str


def decode_request_header(frame: bytes) -> tuple[RequestHeader, int]:
    """The header of a request frame, and the position where its body begins.

    An ApiVersions request of an unknown version is let through: it gets a response of version 0.
    Raises UnsupportedVersion for any other key or version that is not known, MalformedMessage if
    the header is cut or its tags are wrong.
    """
    try:
        key, version, correlation_id, size = _REQUEST.unpack_from(frame)
    except Exception:
        raise MalformedMessage(
            f"a request of {len(frame)} bytes has no room for a header"
        ) from None
    limits = _LIMITS.get(key)
    if limits is None:
        raise UnsupportedVersion(f"there is no request with the api key {key}")
    if not limits[0] <= version <= limits[1] and key != API_VERSIONS_KEY:
        raise UnsupportedVersion(
            f"{APIS[key].name} has versions {limits[0]} to {limits[1]}, not {version}"
        )
    at = 10
    client_id = ""
    if size > 0:
        at += size
        if at > len(frame):
            raise MalformedMessage(f"a client id of {size} bytes runs past the request's end")
        client_id = str(frame[10:at], "utf-8", "replace")
    if version >= _FLEXIBLE_FROM[key]:
        at = _skip_tags(frame, at)
    return RequestHeader(key, version, correlation_id, client_id), at


def encode_request_header(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """The header alone, without the frame's length. Raises UnsupportedVersion for an unknown key."""
    flexible_from = _FLEXIBLE_FROM.get(api_key)
    if flexible_from is None:
        raise UnsupportedVersion(f"there is no request with the api key {api_key}")
    tags = b"\0" if api_version >= flexible_from else b""
    if client_id is None:
        return _REQUEST.pack(api_key, api_version, correlation_id, -1) + tags
    raw = client_id.encode()
    return _REQUEST.pack(api_key, api_version, correlation_id, len(raw)) + raw + tags


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """The header alone, without the frame's length. Raises UnsupportedVersion for an unknown key."""
    header = _CORRELATION_ID.pack(correlation_id)
    return header + b"\0" if response_header_version(api_key, api_version) else header


def decode_response_header(api_key: int, api_version: int, data: bytes) -> tuple[int, int]:
    """The correlation id of a response frame, and the position where its body begins.

    Raises MalformedMessage if the header is cut or its tags are wrong.
    """
    if len(data) < _CORRELATION_ID.size:
        raise MalformedMessage(f"a response of {len(data)} bytes has no room for a header")
    (correlation_id,) = _CORRELATION_ID.unpack_from(data)
    if not response_header_version(api_key, api_version):
        return correlation_id, 4
    return correlation_id, 5 if len(data) > 4 and not data[4] else _skip_tags(data, 4)


def _skip_tags(data: bytes | memoryview, at: int) -> int:
    try:
        if not data[at]:
            return at + 1
        count, at = read_unsigned_varint(data, at)
        if count >= 1 << 31:
            # A signed count below zero means none, as Kafka's reader has it.
            return at
        if count > HEADER_TAGS_MAX:
            raise MalformedMessage(f"{count} tags in a header")
        for _ in range(count):
            _, at = read_unsigned_varint(data, at)
            size, at = read_unsigned_varint(data, at)
            at += size
        if at > len(data):
            raise MalformedMessage("a tag runs past the end of the message")
    except IndexError:
        raise MalformedMessage("the message ends inside the tags of its header") from None
    except MalformedMessage:
        raise
    except ValueError as error:
        raise MalformedMessage(f"the tags of the header hold {error}") from None
    return at
