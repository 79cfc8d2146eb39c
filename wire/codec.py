"""Messages to bytes and back: derives the construct codec of a declaration for one version.

A codec is derived and compiled when it is first needed (about 2 ms) and kept; `registry.warm` does it
ahead for those that must not be late. Nothing is compiled, and construct is not even imported, before
that. Knows no header and no frame: a body in, a message out.
Source of the rules: KIP-482; Apache Kafka 4.3, the generated message classes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import BytesIO
from struct import error as StructError  # noqa: N812 # it is struct that breaks the convention
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from quorumd.wire.errors import LimitExceeded, MalformedMessage, UnsupportedVersion
from quorumd.wire.primitives import Source
from quorumd.wire.request_limits import REQUEST_LIMITS, RESPONSE_ELEMENTS_MAX, RequestLimit
from quorumd.wire.schema import FieldSpec, Kind, Message, Struct

if TYPE_CHECKING:
    from quorumd.wire.types import FixedType, StructType, WireType

M = TypeVar("M", bound=Message)


class Codec(NamedTuple):
    """Both directions for one message at one version, and the construct they are compiled from."""

    construct: StructType
    parse: Callable[[Source, None], Message]
    build: Callable[[Message, BytesIO, None], object]
    limit: RequestLimit


_NO_REQUEST = RequestLimit(RESPONSE_ELEMENTS_MAX, sys.maxsize)
_codecs: dict[tuple[type[Message], int], Codec] = {}


def encode(message: Message, version: int) -> bytes:
    """The body of `message` at `version`.

    Raises UnsupportedVersion if the message has no such version, or if a field that the version
    lacks is neither ignorable nor at its default; MalformedMessage if a value doesn't fit its type.
    """
    codec = codec_for(type(message), version)
    io = BytesIO()
    try:
        codec.build(message, io, None)
    except MalformedMessage as error:
        raise type(error)(f"{type(message).__name__} version {version}: {error}") from None
    except (StructError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise MalformedMessage(
            f"{type(message).__name__} version {version} can't be written: {error}"
        ) from error
    return io.getvalue()


def decode(cls: type[M], version: int, data: bytes | memoryview, at: int = 0) -> M:
    """The message of type `cls` whose body begins at `data[at]`; bytes behind it are ignored.

    Raises MalformedMessage, and nothing else, whatever the bytes are: LimitExceeded for a request that
    holds more than its kind may, before more than that was read.
    """
    codec = codec_for(cls, version)
    elements_max, size_max = codec.limit
    if len(data) - at > size_max:
        raise LimitExceeded(
            f"{cls.__name__} version {version}: {len(data) - at} bytes where {size_max} are allowed"
        )
    io = Source(data, elements_max)
    io.seek(at)
    try:
        message = codec.parse(io, None)
    except Exception as error:
        # A compiled parser may fail in any way on bytes that are no message, and no packet may
        # get further than this.
        why = "it ends too early" if isinstance(error, StructError) else str(error)
        kind = LimitExceeded if isinstance(error, LimitExceeded) else MalformedMessage
        raise kind(
            f"{cls.__name__} version {version}: {why} (near byte {io.tell()} of {io.size})"
        ) from error
    assert isinstance(message, cls)
    return message


def codec_for(cls: type[Message], version: int) -> Codec:
    """The codec of `cls` at `version`, compiled now if it wasn't before.

    Raises UnsupportedVersion if the message has no such version.
    """
    codec = _codecs.get((cls, version))
    if codec is None:
        codec = _codecs[cls, version] = _compile(cls, version)
    return codec


def _compile(cls: type[Message], version: int) -> Codec:
    spec = cls.wire_spec
    if version not in spec.versions:
        raise UnsupportedVersion(
            f"{spec.name} has versions {spec.versions.first} to {spec.versions.last}, not {version}"
        )
    construct = derive(cls, version, is_flexible=version in spec.flexible)
    compiled = construct.compile()
    return Codec(construct, compiled.parsefunc, compiled.buildfunc, _limit_of(cls))


def _limit_of(cls: type[Message]) -> RequestLimit:
    """Limit of what is taken in; responses and records have no limit of bytes but their frame's."""
    key = cls.wire_spec.api_key
    if key is None or not cls.__name__.endswith("Request"):
        return _NO_REQUEST
    return REQUEST_LIMITS[key]


def derive(cls: type[Struct], version: int, *, is_flexible: bool) -> StructType:
    """The construct of a struct as part of a message at `version`, not compiled."""
    from quorumd.wire.types import Absent, Part, StructType

    parts, absent, tags = [], [], []
    for field in cls.wire_spec.fields:
        if version not in field.versions:
            if not field.is_ignorable:
                absent.append(Absent(field.name, field.default))
        elif field.tag is None:
            parts.append(Part(field.name, _field_type(field, version, is_flexible=is_flexible)))
        else:
            made = _field_type(field, version, is_flexible=is_flexible)
            tags.append(Part(field.name, made, field.default, field.tag))
    tags.sort(key=lambda part: part.tag)
    return StructType(cls, parts, absent, tags if is_flexible else None)


_FIXED_CODES = {
    Kind.BOOL: "?",
    Kind.INT8: "b",
    Kind.INT16: "h",
    Kind.INT32: "l",
    Kind.INT64: "q",
    Kind.UINT16: "H",
}


def _field_type(field: FieldSpec, version: int, *, is_flexible: bool) -> WireType | FixedType:
    from quorumd.wire.types import ArrayType

    is_nullable = version in field.nullable
    if not field.is_array:
        return _value_type(field, version, is_flexible=is_flexible, is_nullable=is_nullable)
    element = _value_type(field, version, is_flexible=is_flexible, is_nullable=False)
    return ArrayType(element, is_compact=is_flexible, is_nullable=is_nullable)


def _value_type(
    field: FieldSpec, version: int, *, is_flexible: bool, is_nullable: bool
) -> WireType | FixedType:
    from quorumd.wire.types import FixedType, UuidType, bytes_type, string_type

    of = field.of
    if not isinstance(of, Kind):
        return derive(of, version, is_flexible=is_flexible)
    if of is Kind.STRING:
        return string_type(is_compact=is_flexible, is_nullable=is_nullable)
    if of is Kind.BYTES:
        return bytes_type(is_compact=is_flexible, is_nullable=is_nullable)
    if of is Kind.UUID:
        return UuidType()
    return FixedType(_FIXED_CODES[of])
