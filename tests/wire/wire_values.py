"""Messages drawn at random from their declarations, and the same messages as kio's classes.

kio is an independent implementation of the protocol. Fields are paired by their order and their
names are compared, so that two swapped fields of one type don't go unnoticed.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import os
import typing
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.static.constants import EntityType

from quorumd.wire.registry import APIS, FIRST_OWN_KEY
from quorumd.wire.schema import FieldSpec, Kind, Message, Struct

DEPTH = int(os.environ.get("WIRE_TEST_DEPTH", "1"))
"""Set to 20 or so for a long run: that many times the examples, and other ones each time."""


def examples(count: int) -> settings:
    """Settings of a property that is tried on `count` examples in an ordinary run."""
    return settings(
        max_examples=count * DEPTH,
        deadline=None,
        derandomize=DEPTH == 1,
        suppress_health_check=list(HealthCheck),
    )


ALL_BODIES: list[tuple[type[Message], int]] = [
    (cls, version)
    for spec in APIS.values()
    for version in range(spec.min_version, spec.max_version + 1)
    for cls in (spec.request, spec.response)
]
BODY_IDS = [f"{cls.__name__}-{version}" for cls, version in ALL_BODIES]

OWN_TAGS_FROM = 10_000
"""From here on tagged fields are this project's own, also those in Kafka's messages."""

_INTEGERS = {
    Kind.INT8: (-(2**7), 2**7 - 1),
    Kind.INT16: (-(2**15), 2**15 - 1),
    Kind.INT32: (-(2**31), 2**31 - 1),
    Kind.INT64: (-(2**63), 2**63 - 1),
    Kind.UINT16: (0, 2**16 - 1),
}
_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
# Long enough for a length of two varint bytes.
_LONG_TEXT = st.integers(120, 300).map(lambda size: "x" * size)
_KNOWN_ERRORS = sorted(int(code) for code in KioErrorCode)
_DATETIME_MS_MAX = 2**41


@functools.cache
def messages(cls: type[Struct], version: int, *, own_tags: bool = True) -> st.SearchStrategy[Any]:
    """Any message of `cls` that can be written at `version`, with tags of our own or without."""
    fields = {
        spec.name: _field(spec, version, own_tags=own_tags)
        for spec in cls.wire_spec.fields
        if version in spec.versions and (own_tags or not is_own_tag(spec))
    }
    return st.builds(cls, **fields)


def is_own_tag(spec: FieldSpec) -> bool:
    return spec.tag is not None and spec.tag >= OWN_TAGS_FROM


def has_own(cls: type[Struct]) -> bool:
    """Whether the request is this project's own, or has tagged fields that are."""
    key = cls.wire_spec.api_key
    return (key is not None and key >= FIRST_OWN_KEY) or any(
        is_own_tag(spec) or (not isinstance(spec.of, Kind) and has_own(spec.of))
        for spec in cls.wire_spec.fields
    )


def _field(spec: FieldSpec, version: int, *, own_tags: bool) -> st.SearchStrategy[Any]:
    value = _value(spec, version, own_tags=own_tags)
    if spec.is_array:
        value = st.lists(value, max_size=3).map(tuple)
    if version in spec.nullable:
        value = st.none() | value
    return value if spec.tag is None else st.just(spec.default) | value


def _value(spec: FieldSpec, version: int, *, own_tags: bool) -> st.SearchStrategy[Any]:
    of = spec.of
    if not isinstance(of, Kind):
        return messages(of, version, own_tags=own_tags)
    if spec.name == "error_code":
        return st.sampled_from(_KNOWN_ERRORS)
    if spec.name == "log_append_time_ms":
        # kio has a datetime here, which doesn't reach further.
        return st.integers(-1, _DATETIME_MS_MAX)
    if of in _INTEGERS:
        return st.integers(*_INTEGERS[of])
    if of is Kind.BOOL:
        return st.booleans()
    if of is Kind.UUID:
        return st.just(UUID(int=0)) | st.uuids()
    if of is Kind.STRING:
        return _TEXT | _LONG_TEXT
    return st.binary(max_size=200)


@functools.cache
def kio_class(cls: type[Message], version: int) -> type[Any]:
    key = cls.wire_spec.api_key
    assert key is not None
    kind = EntityType.request if cls.__name__.endswith("Request") else EntityType.response
    return typing.cast("type[Any]", vars(load_payload_module(key, version, kind))[cls.__name__])


def to_kio(message: Struct, kio_cls: type[Any], version: int) -> Any:
    """The same message as an instance of kio's class; fails if the declarations differ.

    Tags of our own have no place in it.
    """
    ours = [
        spec
        for spec in message.wire_spec.fields
        if version in spec.versions and not is_own_tag(spec)
    ]
    theirs = dataclasses.fields(kio_cls)
    assert [spec.name.removesuffix("_ms") for spec in ours] == [
        field.name.removesuffix("_ms").removesuffix("_").replace("k_raft", "kraft")
        for field in theirs
    ]
    assert [spec.tag for spec in ours] == [field.metadata.get("tag") for field in theirs]
    hints = typing.get_type_hints(kio_cls)
    return kio_cls(
        **{
            field.name: _to_kio_value(
                getattr(message, spec.name), field, hints[field.name], version
            )
            for spec, field in zip(ours, theirs, strict=True)
        }
    )


def _to_kio_value(value: Any, field: Any, hint: Any, version: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_to_kio_value(item, field, hint, version) for item in value)
    if isinstance(value, Struct):
        return to_kio(value, _entity(hint), version)
    match field.metadata.get("kafka_type"):
        case "error_code":
            return KioErrorCode(value)
        case "timedelta_i32":
            return datetime.timedelta(milliseconds=value)
        case "datetime_i64":
            if value == -1:
                return None
            return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(
                milliseconds=value
            )
        case "uuid" if value is not None:
            return value if value.int else None
    return value


@functools.cache
def _entity(hint: Any) -> Any:
    """The struct class inside a type such as `tuple[X, ...] | None`."""
    if dataclasses.is_dataclass(hint):
        return hint
    for inner in typing.get_args(hint):
        if (found := _entity(inner)) is not None:
            return found
    return None
