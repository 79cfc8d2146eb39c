"""Declares a message: a class whose fields carry their Kafka type, versions, default and tag.

    class VoteRequest(Message, api_key=52, versions="0-2", flexible="0+"):
        cluster_id: str | None = field(STRING, nullable="0+", default=None)
        voter_id: int = field(INT32, versions="1+", default=-1, ignorable=True)
        topics: tuple[VoteRequestTopic, ...] = array(VoteRequestTopic)

The classes are frozen, slotted, keyword-only dataclasses. Every field has a default, the schema's or
its type's zero, so that a writer names only what matters. Arrays are tuples, uuids `uuid.UUID` (zero
is `UUID(int=0)`), bytes and records any bytes-like object. Version ranges are written "2-5", "3+"
or "4". Nothing here knows about bytes: quorumd.wire.codec derives them.
Source: Apache Kafka, message schemas (README of clients/src/main/resources/common/message).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple, dataclass_transform
from uuid import UUID

VERSION_MAX = 32767
ZERO_UUID: Final = UUID(int=0)


class Kind(Enum):
    """The primitive types of Kafka's messages."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT16 = "uint16"
    UUID = "uuid"
    STRING = "string"
    BYTES = "bytes"


BOOL: Final = Kind.BOOL
INT8: Final = Kind.INT8
INT16: Final = Kind.INT16
INT32: Final = Kind.INT32
INT64: Final = Kind.INT64
UINT16: Final = Kind.UINT16
UUID_: Final = Kind.UUID
STRING: Final = Kind.STRING
BYTES: Final = Kind.BYTES
RECORDS: Final = Kind.BYTES
"""Record batches are bytes to a message; quorumd.wire.records knows what is inside."""

_ZEROS: dict[Kind, object] = {
    Kind.BOOL: False,
    Kind.INT8: 0,
    Kind.INT16: 0,
    Kind.INT32: 0,
    Kind.INT64: 0,
    Kind.UINT16: 0,
    Kind.UUID: ZERO_UUID,
    Kind.STRING: "",
    Kind.BYTES: b"",
}
_MISSING: Final = object()


class Versions(NamedTuple):
    """A range of versions, both ends inclusive; empty if `first` is above `last`."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


NO_VERSIONS: Final = Versions(1, 0)


def versions_from_text(text: str) -> Versions:
    """The range that "2-5", "3+" or "4" names; "none" is the empty one."""
    if text == "none":
        return NO_VERSIONS
    if text.endswith("+"):
        return Versions(int(text[:-1]), VERSION_MAX)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


class FieldSpec(NamedTuple):
    """One field of a declaration. `of` is a primitive type or a struct class."""

    name: str
    of: Kind | type[Struct]
    is_array: bool
    versions: Versions
    nullable: Versions
    default: object
    tag: int | None
    is_ignorable: bool


class StructSpec(NamedTuple):
    """A declaration. `api_key` is None for what is not a request or response of its own."""

    name: str
    fields: tuple[FieldSpec, ...]
    api_key: int | None
    versions: Versions
    flexible: Versions


class _Undecided(NamedTuple):
    """The knowledge of `field` and `array` before the class gives the field its name."""

    of: Kind | type[Struct]
    is_array: bool
    versions: str
    nullable: str
    default: object
    tag: int | None
    is_ignorable: bool


def field(
    of: Kind | type[Struct],
    *,
    versions: str = "0+",
    nullable: str = "none",
    default: object = _MISSING,
    tag: int | None = None,
    ignorable: bool = False,
) -> Any:
    """A field holding one value; `tag` puts it into the tag section.

    An encoder at a version without the field drops an `ignorable` one and refuses any other that
    is not at its default.
    """
    return _Undecided(of, False, versions, nullable, default, tag, ignorable)


def array(
    of: Kind | type[Struct],
    *,
    versions: str = "0+",
    nullable: str = "none",
    default: object = (),
    tag: int | None = None,
    ignorable: bool = False,
) -> Any:
    """A field holding a tuple of values; the rest as in `field`."""
    return _Undecided(of, True, versions, nullable, default, tag, ignorable)


def _init_of(fields: Sequence[FieldSpec]) -> Any:
    """The `__init__` that dataclasses would make of these fields."""
    names: dict[str, Any] = {"_set": object.__setattr__}
    names.update((each.name, each.default) for each in fields)
    parameters = "".join(f", {each.name}={each.name}" for each in fields)
    lines = [f"def __init__(self{', *' if fields else ''}{parameters}):", "    pass"]
    lines += [f"    _set(self, {each.name!r}, {each.name})" for each in fields]
    exec("\n".join(lines), names)
    return names["__init__"]


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Declared(type):
    """Turns a declaration into a dataclass and notes its StructSpec."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api_key: int | None = None,
        versions: str = "0+",
        flexible: str = "none",
    ) -> Any:
        if not bases or "__dataclass_fields__" in namespace:
            # The base classes, and the second making of a class that gives it its slots.
            return super().__new__(mcs, name, bases, namespace)
        fields = []
        for field_name, value in list(namespace.items()):
            if isinstance(value, _Undecided):
                spec = _field_spec(field_name, value)
                fields.append(spec)
                namespace[field_name] = spec.default
        # dataclasses would compile six functions a class: a fifth of the time in which quorumctl starts.
        namespace.setdefault("__doc__", name)
        namespace["__init__"] = _init_of(fields)
        cls: Any = dataclasses.dataclass(
            init=False, repr=False, eq=False, slots=True, kw_only=True
        )(super().__new__(mcs, name, bases, namespace))
        cls.wire_spec = StructSpec(
            name,
            tuple(fields),
            api_key,
            versions_from_text(versions),
            versions_from_text(flexible),
        )
        return cls


class Struct(metaclass=Declared):
    """A part of a message. Its versions are those of the message that it is a part of."""

    __slots__ = ()
    wire_spec: ClassVar[StructSpec]

    def _values(self) -> tuple[object, ...]:
        return tuple([getattr(self, each.name) for each in self.wire_spec.fields])

    def __repr__(self) -> str:
        names = (each.name for each in self.wire_spec.fields)
        values = (f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({', '.join(values)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


class Message(Struct):
    """A request, a response, or the value of a control record."""


def _field_spec(name: str, given: _Undecided) -> FieldSpec:
    default = given.default
    if default is _MISSING:
        default = _ZEROS[given.of] if isinstance(given.of, Kind) else given.of()
    return FieldSpec(
        name,
        given.of,
        given.is_array,
        versions_from_text(given.versions),
        versions_from_text(given.nullable),
        default,
        given.tag,
        given.is_ignorable,
    )
