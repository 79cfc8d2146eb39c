"""The single reads that the compiled form has in place of `unpack_from`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from native.reads import with_reads
from tests.architecture.source_tree import all_modules
from tests.support.compiled import compiled_modules

EXAMPLE = """\
from __future__ import annotations

from struct import Struct
from typing import Final

ALL: Final = Struct(">bB3xhHiIq4sx2iq")
ONE: Final = Struct(">I")
LITTLE: Final = Struct("<hb")
LARGE: Final = Struct(">Q")

def all_of(data: bytes, at: int) -> tuple[object, ...]:
    (
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        i,
        j,
        k,
    ) = ALL.unpack_from(data, at)
    return a, b, c, d, e, f, g, h, i, j, k

def last_of(data: bytes, at: int) -> tuple[object, ...]:
    _, _, _, _, _, _, _, h, *_ = ALL.unpack_from(data, at)
    return (h,)

def some_of(data: bytes, at: int) -> tuple[object, ...]:
    _, _, _, _, _, _, _, h, _, _, _ = ALL.unpack_from(data, at + 1)
    return (h,)

def first_of(data: bytes, at: int) -> tuple[object, ...]:
    (a,) = ONE.unpack_from(data)
    return (a,)

def by_position(data: bytes, /, at: int) -> tuple[object, ...]:
    (a,) = ONE.unpack_from(data, at)
    return (a,)

def of_a_view(data: bytes | memoryview, at: int) -> tuple[object, ...]:
    (a,) = ONE.unpack_from(data, at)
    return (a,)

def of_a_view_beside_bytes(data: bytes | memoryview, at: int, other: bytes = b"") -> tuple[object, ...]:
    (a,) = ONE.unpack_from(data, at)
    return (a,)

def of_the_other_end(data: bytes, at: int) -> tuple[object, ...]:
    a, b = LITTLE.unpack_from(data, at)
    return a, b

def of_a_large_one(data: bytes, at: int) -> tuple[object, ...]:
    (a,) = LARGE.unpack_from(data, at)
    return (a,)

def of_a_call(data: bytes, at: int) -> tuple[object, ...]:
    (a,) = ONE.unpack_from(data, max(0, at))
    return (a,)

def of_what_changes(data: bytes, at: int) -> tuple[object, ...]:
    (at,) = ONE.unpack_from(data, at)
    return (at,)
"""
WRITTEN_OUT = {"all_of", "some_of", "first_of", "by_position"}
LEFT_ALONE = {
    *("last_of", "of_a_view", "of_the_other_end", "of_a_large_one", "of_a_call"),
    *("of_a_view_beside_bytes", "of_what_changes"),
}
Function = Callable[[bytes, int], tuple[object, ...]]
TOO_SHORT = "too short"


def functions(source: str) -> dict[str, Function]:
    space: dict[str, Any] = {}
    exec(compile(source, "example", "exec", dont_inherit=True), space)
    return {name: space[name] for name in (*WRITTEN_OUT, *LEFT_ALONE)}


BEFORE, AFTER = functions(EXAMPLE), functions(with_reads(EXAMPLE))


def outcome(function: Function, data: bytes, at: int) -> object:
    try:
        return function(data, at)
    except (struct.error, IndexError):
        return TOO_SHORT


@given(data=st.binary(max_size=80), at=st.integers(0, 40))
@example(data=b"\xff" * 80, at=1)
@example(data=bytes(range(120, 200)), at=0)
def test_a_read_is_what_the_library_unpacks(data: bytes, at: int) -> None:
    for name, function in AFTER.items():
        assert outcome(function, data, at) == outcome(BEFORE[name], data, at), name


def test_bytes_that_are_too_short_by_one_are_seen() -> None:
    size = struct.calcsize(">bB3xhHiIq4sx2iq")
    data = bytes(range(7, 7 + size))
    for name, at, needed in (("all_of", 0, size), ("some_of", 0, size + 1), ("first_of", 0, 4)):
        whole = (data + b"z")[:needed]
        assert outcome(AFTER[name], whole, at) != TOO_SHORT
        assert outcome(AFTER[name], whole[:-1], at) == TOO_SHORT


def test_lines_keep_their_numbers_and_what_cannot_be_written_out_is_left_alone() -> None:
    before, after = EXAMPLE.split("\n"), with_reads(EXAMPLE).split("\n")
    assert len(after) == len(before)
    for function in (*WRITTEN_OUT, *LEFT_ALONE):
        begin = next(k for k, line in enumerate(before) if line.startswith(f"def {function}("))
        assert after[begin] == before[begin]
        assert (after[begin + 1] != before[begin + 1]) == (function in WRITTEN_OUT), function
    assert with_reads("import struct\n") == "import struct\n"


def test_a_wrong_number_of_names_is_no_build() -> None:
    with pytest.raises(AssertionError, match="2 names for >I"):
        with_reads(EXAMPLE.replace("(a,) = ONE.unpack_from(data)", "a, b = ONE.unpack_from(data)"))


def test_the_path_of_a_record_is_written_out() -> None:
    """One that is no longer would be slower, and nothing else would tell."""
    names = set(compiled_modules())
    found = {
        module.name.removeprefix("quorumd."): len(
            [line for line in with_reads(module.text).split("\n") if "(read_i" in line]
        )
        for module in all_modules()
        if module.name in names
    }
    least = {
        "server.net.connection": 1,
        "server.net.inbound_request": 1,
        "server.peers.peer_connection": 1,
        "server.translate.fetched_batches": 2,
        "wire.batch_header": 1,
        "wire.fast.fetch_request": 4,
        "wire.fast.fetch_response": 7,
        "wire.fast.produce": 3,
        "wire.headers": 2,
        "wire.produced": 1,
    }
    assert {name: found[name] for name, count in least.items() if found[name] < count} == {}
