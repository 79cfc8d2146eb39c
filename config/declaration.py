"""Declares a key: a field of a class, with its parser, its default and what operators read about it.

    @configuration
    class Config:
        max_connections: int = key(WholeNumber(16, 1_000_000), default=1_000, doc="How many ...")

The key is the field's name with dots for underscores. Nothing else says anything about a key: what a file
or a variable may hold, the example file and the table of the manual follow from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar, dataclass_transform

T = TypeVar("T")
NO_DEFAULT: Final = dataclasses.MISSING
_DECLARED: Final = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key, as it was declared; see `key` for what its parts mean."""

    name: str
    parse: Callable[[str], object]
    default: object
    doc: str
    required: str
    example: str
    default_text: str
    section: str
    is_list: bool
    is_in_example: bool
    is_listeners: bool

    @property
    def field(self) -> str:
        """The name of the field."""
        return self.name.replace(".", "_")


def key(
    parse: Callable[[str], object],
    *,
    doc: str,
    default: Any = NO_DEFAULT,
    required: str = "",
    example: str = "",
    default_text: str = "",
    section: str = "",
    is_list: bool = False,
    is_in_example: bool = False,
    is_listeners: bool = False,
) -> Any:
    """A field of a `configuration`.

    `parse` makes the value of a text and raises BadValue. `required` says what a key is that has to be set,
    `default_text` what happens without one whose default is no text, `example` is a value to show.
    A list may be a YAML list as well as text with commas. `section` is the heading above the key in the
    example file, where a key that is set there, though others may be set instead, `is_in_example`. One that
    `is_listeners` may be set for a listener, too.
    """
    declared = Key(
        name="",
        parse=parse,
        default=default,
        doc=doc,
        required=required,
        example=example,
        default_text=default_text,
        section=section,
        is_list=is_list,
        is_in_example=is_in_example,
        is_listeners=is_listeners,
    )
    if isinstance(default, Mapping):
        # No default that can be changed is taken: each value gets its own.
        return dataclasses.field(
            default_factory=partial(dict, default), metadata={_DECLARED: declared}
        )
    return dataclasses.field(default=default, metadata={_DECLARED: declared})


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(key, dataclasses.field)
)
def configuration(cls: type[T]) -> type[T]:
    """Makes a frozen dataclass of declared keys; other fields are no keys."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


def keys_of(cls: type) -> Mapping[str, Key]:
    """The keys that a configuration declares, by name and in its order."""
    found = {}
    for field in dataclasses.fields(cls):
        if _DECLARED in field.metadata:
            name = field.name.replace("_", ".")
            found[name] = dataclasses.replace(field.metadata[_DECLARED], name=name)
    return MappingProxyType(found)
