"""The single writes that the compiled form has in place of `pack`."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from native.packs import with_packs
from native.reads import with_reads
from tests.architecture.source_tree import all_modules
from tests.support.compiled import compiled_modules

EXAMPLE = """\
from __future__ import annotations

from struct import Struct
from typing import Final

ALL: Final = Struct(">3sqihs")
LITTLE: Final = Struct("<hi")
OTHER: Final = Struct(">hB")
COUNTED: Final = Struct(">2h")
NAME = "ALL"

class Writer:
    def __init__(self, head: bytes, tail: bytes) -> None:
        self.layout = Struct(f">{len(head)}si{len(tail)}s")
        self.twice = Struct(">i")
        self.taken = Struct(">i")
        self.made = Struct(NAME and ">hi")

    def again(self) -> None:
        self.twice = Struct(">h")
        self.taken = self.twice

    def by_attribute(self, a: bytes, q: int, i: int, h: int, z: bytes) -> bytes:
        return self.layout.pack(
            a,
            i,
            z,
        )

    def by_one_of_two(self, a: bytes, q: int, i: int, h: int, z: bytes) -> bytes:
        return self.twice.pack(h)

    def by_what_is_taken(self, a: bytes, q: int, i: int, h: int, z: bytes) -> bytes:
        return self.taken.pack(h)

    def by_what_is_made(self, a: bytes, q: int, i: int, h: int, z: bytes) -> bytes:
        return self.made.pack(h, i)

    def by_constant(self, a: bytes, q: int, i: int, h: int, z: bytes) -> bytes:
        return ALL.pack(a, q, i, h, z)

    def of_the_other_end(self, a: bytes, q: int, i: int, h: int, z: bytes) -> bytes:
        return LITTLE.pack(h, i)

    def of_other_fields(self, a: bytes, q: int, i: int, h: int, z: bytes) -> bytes:
        return OTHER.pack(h, 7)

    def of_a_count(self, a: bytes, q: int, i: int, h: int, z: bytes) -> bytes:
        return COUNTED.pack(h, 7)

    def of_a_star(self, a: bytes, q: int, i: int, h: int, z: bytes) -> bytes:
        return ALL.pack(a, *(q, i, h), z)

    def of_more(self, a: bytes, q: int, i: int, h: int, z: bytes) -> bytes:
        return a + ALL.pack(a, q, i, h, z)
"""
WRITTEN_OUT = {"by_attribute", "by_constant"}
LEFT_ALONE = {
    *(
        "by_one_of_two",
        "by_what_is_taken",
        "by_what_is_made",
        "of_the_other_end",
        "of_other_fields",
    ),
    *("of_a_count", "of_a_star", "of_more"),
}
TOO_LARGE = "too large"


def writer(source: str) -> Any:
    space: dict[str, Any] = {}
    exec(compile(source, "example", "exec", dont_inherit=True), space)
    made = space["Writer"](b"abc", b"z")
    made.again()
    return made


BEFORE, AFTER = writer(EXAMPLE), writer(with_packs(EXAMPLE))


def outcome(of: Any, name: str, *values: object) -> object:
    try:
        return getattr(of, name)(*values)
    except (struct.error, OverflowError, ValueError):
        return TOO_LARGE


def bits(count: int) -> st.SearchStrategy[int]:
    """Numbers of a field, those at its ends most of all, and some that it does not hold."""
    end = 1 << (count - 1)
    near = st.sampled_from([-end - 1, -end, -1, 0, 1, end - 1, end, 1 << 70])
    return near | st.integers(-end, end - 1)


@given(
    a=st.binary(min_size=3, max_size=3),
    q=bits(64),
    i=bits(32),
    h=bits(16),
    z=st.binary(min_size=1, max_size=1),
)
@example(a=b"\xff\0\x80", q=-(1 << 63), i=(1 << 31) - 1, h=-1, z=b"\0")
def test_what_is_written_is_what_the_library_packs(
    a: bytes, q: int, i: int, h: int, z: bytes
) -> None:
    for name in (*WRITTEN_OUT, *LEFT_ALONE):
        assert outcome(AFTER, name, a, q, i, h, z) == outcome(BEFORE, name, a, q, i, h, z), name


def test_lines_keep_their_numbers_and_what_cannot_be_written_out_is_left_alone() -> None:
    before, after = EXAMPLE.split("\n"), with_packs(EXAMPLE).split("\n")
    assert len(after) == len(before)
    for function in (*WRITTEN_OUT, *LEFT_ALONE):
        begin = next(k for k, line in enumerate(before) if line.startswith(f"    def {function}("))
        assert after[begin] == before[begin]
        assert (after[begin + 1] != before[begin + 1]) == (function in WRITTEN_OUT), function
    assert with_packs("import struct\n") == "import struct\n"


def test_a_wrong_number_of_values_is_no_build() -> None:
    with pytest.raises(AssertionError, match="2 values for sqihs"):
        with_packs(EXAMPLE.replace("return ALL.pack(a, q, i, h, z)", "return ALL.pack(a, q)"))


def test_both_changes_of_a_module_have_their_imports() -> None:
    both = EXAMPLE + "\ndef first(data: bytes) -> int:\n    (found,) = ONE.unpack_from(data)\n"
    both = both.replace("NAME =", 'ONE: Final = Struct(">i"); NAME =')
    text = with_packs(with_reads(both))
    assert "read_i32_be(data" in text
    exec(compile(text, "example", "exec", dont_inherit=True), {})


def test_the_path_of_a_record_is_written_out() -> None:
    """One that is no longer would be slower, and nothing else would tell."""
    names = {name.removeprefix("quorumd.") for name in compiled_modules()}
    found = {
        name
        for module in all_modules()
        if (name := module.name.removeprefix("quorumd.")) in names
        and "packed = BytesWriter()" in with_packs(module.text)
    }
    assert found == {"wire.batch_header", "wire.fast.produce"}
