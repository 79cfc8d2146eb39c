"""Every way in which a message may be written: tags that nobody knows yet, defaults and nulls said
aloud, varints longer than needed. All of it follows from the declaration, so a new field is in it too.

Source: KIP-482; Apache Kafka, ByteBufferAccessor (which varints are read).
"""

from __future__ import annotations

import struct
from typing import Any, Protocol
from uuid import UUID

from hypothesis import strategies as st

from quorumd.wire.schema import FieldSpec, Kind, Message, Struct

# Far above what Kafka and this project use.
UNKNOWN_TAGS = st.dictionaries(
    st.integers(50, 126) | st.integers(127, 9_000), st.binary(max_size=200), max_size=2
)
_FORMATS = {
    Kind.BOOL: ">?",
    Kind.INT8: ">b",
    Kind.INT16: ">h",
    Kind.INT32: ">i",
    Kind.INT64: ">q",
    Kind.UINT16: ">H",
}


class Choices(Protocol):
    """What a writer is free to do."""

    def unknown_tags(self) -> dict[int, bytes]:
        """Tags that the reader does not know, for one struct."""

    def says_default(self) -> bool:
        """Whether a tagged field is written though it is at its default."""

    def longer_by(self) -> int:
        """Bytes by which a varint is longer than needed."""


class Unusual:
    """As much as possible that no sender of today does."""

    def unknown_tags(self) -> dict[int, bytes]:
        return {99: b"new", 7_000: b""}

    def says_default(self) -> bool:
        return True

    def longer_by(self) -> int:
        return 1


class _Drawn:
    """As usual half of the time, else anything."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._is_usual = draw(st.booleans())

    def unknown_tags(self) -> dict[int, bytes]:
        return {} if self._is_usual else self._draw(UNKNOWN_TAGS)

    def says_default(self) -> bool:
        return not self._is_usual and self._draw(st.booleans())

    def longer_by(self) -> int:
        return 0 if self._is_usual else self._draw(st.sampled_from((0, 0, 0, 1, 2)))


def encodings(message: Message, version: int) -> st.SearchStrategy[bytes]:
    """Bodies that all mean this message at this version."""

    @st.composite
    def body(draw: st.DrawFn) -> bytes:
        return written(message, version, _Drawn(draw))

    return body()


def written(message: Message, version: int, choices: Choices) -> bytes:
    """The body of the message at this version, as chosen."""
    return _Writer(choices, version, version in message.wire_spec.flexible).struct(message)


class _Writer:
    """Writes one message."""

    def __init__(self, choices: Choices, version: int, is_flexible: bool) -> None:
        self._choices = choices
        self._version = version
        self._is_flexible = is_flexible

    def struct(self, value: Struct) -> bytes:
        parts, tagged = [], {}
        for spec in value.wire_spec.fields:
            if self._version not in spec.versions:
                continue
            found = getattr(value, spec.name)
            if spec.tag is None:
                parts.append(self._field(spec, found))
            elif found != spec.default or self._choices.says_default():
                tagged[spec.tag] = self._field(spec, found)
        if self._is_flexible:
            parts.append(self._tags({**tagged, **self._choices.unknown_tags()}))
        return b"".join(parts)

    def _tags(self, tagged: dict[int, bytes]) -> bytes:
        parts = [self._varint(len(tagged))]
        for tag, data in sorted(tagged.items()):
            parts += (self._varint(tag), self._varint(len(data)), data)
        return b"".join(parts)

    def _field(self, spec: FieldSpec, value: Any) -> bytes:
        if not spec.is_array:
            return self._value(spec.of, value)
        if value is None:
            return self._length(-1, 4)
        elements = [self._value(spec.of, element) for element in value]
        return self._length(len(elements), 4) + b"".join(elements)

    def _value(self, of: Kind | type[Struct], value: Any) -> bytes:
        if not isinstance(of, Kind):
            return self.struct(value)
        if of is Kind.UUID:
            assert isinstance(value, UUID)
            return value.bytes
        if of in _FORMATS:
            return struct.pack(_FORMATS[of], value)
        length_bytes = 2 if of is Kind.STRING else 4
        if value is None:
            return self._length(-1, length_bytes)
        data = value.encode() if isinstance(value, str) else bytes(value)
        return self._length(len(data), length_bytes) + data

    def _length(self, length: int, size_bytes: int) -> bytes:
        if self._is_flexible:
            return self._varint(length + 1)
        return length.to_bytes(size_bytes, "big", signed=True)

    def _varint(self, value: int) -> bytes:
        groups = [value & 0x7F]
        while value := value >> 7:
            groups.append(value & 0x7F)
        groups += [0] * min(self._choices.longer_by(), 5 - len(groups))
        return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])
