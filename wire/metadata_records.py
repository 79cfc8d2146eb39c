"""A metadata record's bytes to its fields. Source: KIP-482, KIP-631; the names are those of Kafka's JSON."""

from __future__ import annotations

import struct
from base64 import b64encode, urlsafe_b64encode
from struct import Struct
from typing import Any, Final, NamedTuple

from quorumd.wire.metadata_declarations import Field, declarations
from quorumd.wire.varints import read_unsigned_varint

_FRAME_VERSION = 1
_FIXED: Final = {
    "bool": Struct(">?"),
    "int8": Struct(">b"),
    "int16": Struct(">h"),
    "uint16": Struct(">H"),
    "int32": Struct(">i"),
    "int64": Struct(">q"),
    "float64": Struct(">d"),
}
_UUID_BYTES = 16


class NotMetadata(ValueError):
    """Bytes that are no metadata record of Kafka."""


class MetadataRecord(NamedTuple):
    """A record by field name; `fields` are None for a type or version that is not known here."""

    number: int
    name: str
    version: int
    fields: dict[str, Any] | None


def decode_metadata(value: bytes) -> MetadataRecord:
    """Raises NotMetadata."""
    try:
        return _decode(value)
    except (IndexError, struct.error):
        raise NotMetadata("it ends in the middle of a field") from None
    except ValueError as error:
        if isinstance(error, NotMetadata):
            raise
        raise NotMetadata(str(error)) from None


def _decode(value: bytes) -> MetadataRecord:
    frame, at = read_unsigned_varint(value, 0)
    if frame != _FRAME_VERSION:
        raise NotMetadata(f"its first byte is {frame} instead of {_FRAME_VERSION}")
    number, at = read_unsigned_varint(value, at)
    version, at = read_unsigned_varint(value, at)
    declaration = declarations().get(number)
    if declaration is None:
        return MetadataRecord(number, f"Unknown{number}", version, None)
    if version not in declaration.versions:
        return MetadataRecord(number, declaration.name, version, None)
    reader = _Reader(value, at, version)
    fields = reader.struct(declaration.fields)
    if reader.at != len(value):
        raise NotMetadata(f"{len(value) - reader.at} bytes more than a {declaration.name} has")
    return MetadataRecord(number, declaration.name, version, fields)


class _Reader:
    """Moves through one record."""

    def __init__(self, data: bytes, at: int, version: int) -> None:
        self._data = data
        self.at = at
        self._version = version

    def struct(self, fields: list[Field]) -> dict[str, Any]:
        here = [each for each in fields if self._version in each.versions]
        found = {each.json_name: self._field(each) for each in here if each.tag is None}
        tagged = {each.tag: each for each in here if each.tag is not None}
        for _ in range(self._number()):
            tag, size = self._number(), self._number()
            end = self.at + size
            if tag in tagged:
                found[tagged[tag].json_name] = self._field(tagged[tag])
            else:
                self._take(size)
            if self.at != end:
                raise NotMetadata(f"the tagged field {tag} has not the size that it claims")
        return found

    def _field(self, field: Field) -> Any:
        is_nullable = self._version in field.nullable
        if not field.is_array:
            return self._value(field, is_nullable)
        count = self._number() - 1
        if count < 0:
            return self._null(field, is_nullable)
        # An element has at least a byte.
        if count > len(self._data) - self.at:
            raise NotMetadata(f"{field.name} has {count} elements")
        return [self._value(field, False) for _ in range(count)]

    def _value(self, field: Field, is_nullable: bool) -> Any:
        if (fixed := _FIXED.get(field.type)) is not None:
            (value,) = fixed.unpack(self._take(fixed.size))
            return value
        if field.type == "uuid":
            return urlsafe_b64encode(self._take(_UUID_BYTES)).rstrip(b"=").decode()
        if field.type not in ("string", "bytes"):
            return self.struct(field.fields)
        size = self._number() - 1
        if size < 0:
            return self._null(field, is_nullable)
        data = self._take(size)
        return data.decode() if field.type == "string" else b64encode(data).decode()

    def _null(self, field: Field, is_nullable: bool) -> None:
        if not is_nullable:
            raise NotMetadata(f"{field.name} is null")

    def _number(self) -> int:
        value, self.at = read_unsigned_varint(self._data, self.at)
        return value

    def _take(self, size: int) -> bytes:
        data = self._data[self.at : self.at + size]
        if len(data) < size:
            raise NotMetadata("it ends in the middle of a field")
        self.at += size
        return data
