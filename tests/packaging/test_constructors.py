"""The constructors that the compiled form has in place of those that the library makes of dataclasses."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from native.constructors import with_constructors
from native.sources import write_sources
from quorumd.raft.effects import FetchReply
from tests.architecture.source_tree import ROOT, all_modules
from tests.support.compiled import compiled_modules

EXAMPLE = '''\
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, NamedTuple

@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    epoch: int
    """Of the leader."""
    voted: "str | None" = None

@dataclass(frozen=True, slots=True)
class Sized(Base):
    size: int
    limits: tuple[int, int] = (1, 2)

    def twice(self):
        return 2 * self.size

@dataclass
class Plain:
    value: float

@dataclass
class WithFactory:
    found: list[int] = field(default_factory=list)

@dataclass
class Checked:
    value: int

    def __post_init__(self):
        assert self.value

@dataclass
class Counted:
    limit: ClassVar[int] = 3
    value: int

class Pair(NamedTuple):
    first: int

@dataclass(kw_only=True)
class Again(Plain):
    value: float = 1.0

@dataclass
class Late:
    value: int
    _: KW_ONLY
    limit: int = 3

@dataclass
class Foreign(Exception):
    value: int

class Last:
    value: int
'''


def signature(function: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


def written(source: str) -> dict[str, ast.FunctionDef]:
    """By class, the constructors that are not in the source itself."""
    module = ast.parse(with_constructors(source))
    own = {node.name for node in ast.parse(source).body if _constructor(node) is not None}
    return {
        node.name: made
        for node in module.body
        if isinstance(node, ast.ClassDef)
        and node.name not in own
        and (made := _constructor(node)) is not None
    }


def _constructor(node: ast.AST) -> ast.FunctionDef | None:
    body = node.body if isinstance(node, ast.ClassDef) else []
    for each in body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return each
    return None


def test_a_constructor_does_what_the_library_s_does_and_lines_keep_their_numbers() -> None:
    changed = with_constructors(EXAMPLE)
    assert changed.count("\n") == EXAMPLE.count("\n")
    assert written(EXAMPLE).keys() == {"Base", "Sized", "Plain"}
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    exec(compile(EXAMPLE, "before", "exec", dont_inherit=True), before)
    # Python lets no constructor set what is frozen; machine code does.
    changed = changed.replace("frozen=True", "unsafe_hash=True")
    exec(compile(changed, "after", "exec", dont_inherit=True), after)
    for name in ("Base", "Sized", "Plain"):
        assert signature(after[name]) == signature(before[name])
    assert str(after["Sized"](7, epoch=3)) == str(before["Sized"](7, epoch=3))
    assert after["Sized"](7, (3, 4), epoch=3, voted="x").limits == (3, 4)


def test_a_class_without_a_blank_line_behind_it_is_named() -> None:
    with pytest.raises(ValueError, match=r"class A: no blank line behind it"):
        with_constructors("@dataclass\nclass A:\n    x: int\nb = 1\n")


def of_the_product() -> Iterator[tuple[str, str, ast.FunctionDef]]:
    """Module, class and constructor of all that are written."""
    names = set(compiled_modules())
    for module in all_modules():
        if module.name in names:
            for owner, made in written(module.text).items():
                yield module.name, owner, made


@pytest.mark.pure
def test_all_that_are_written_take_what_the_library_s_take() -> None:
    seen = set()
    for name, owner, made in of_the_product():
        module = import_module(name)
        space = dict(vars(module))
        exec(compile(ast.Module([made], []), name, "exec", dont_inherit=True), space)
        assert signature(space["__init__"])[1:] == signature(getattr(module, owner)), owner
        seen.add(owner)
    assert {FetchReply.__name__, "AppendRequested", "FetchRequestReceived", "Chunk"} <= seen
    assert len(seen) > 80


def test_what_is_compiled_is_a_copy(tmp_path: Any) -> None:
    module = "quorumd/raft/events.py"
    write_sources(ROOT / "quorumd", tmp_path / "copy", [module])
    copied, source = (folder / module for folder in (tmp_path / "copy", ROOT))
    assert copied.read_text() == with_constructors(source.read_text())
    assert "def __init__" in copied.read_text()
    assert "def __init__" not in source.read_text()
    other = "quorumd/wire/schema.py"
    assert (tmp_path / "copy" / other).read_bytes() == (ROOT / other).read_bytes()
    assert not [path for path in (tmp_path / "copy").rglob("*") if path.is_symlink()]
