"""What is compiled keeps to what mypyc does as Python does; the rest it says itself, or does wrongly."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.source_tree import Module, all_modules
from tests.support.compiled import compiled_modules

KNOWN_BASES = {
    "Enum",
    "Exception",
    "Generic",
    "IntEnum",
    "NamedTuple",
    "Protocol",
    "StrEnum",
    "TypedDict",
    "ValueError",
}
"""Of other bases mypyc takes some for classes without memory of their own: a BytesIO is overwritten."""
NAMES = sorted(compiled_modules())
WORD = re.compile(r"\w+")


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    """All of the project, by name."""
    return {module.name: module for module in all_modules()}


@pytest.fixture(scope="module")
def classes(modules: dict[str, Module]) -> set[str]:
    """Names of those that are compiled."""
    return {
        node.name
        for name in NAMES
        for node in ast.walk(modules[name].tree)
        if isinstance(node, ast.ClassDef)
    }


def bases(node: ast.ClassDef) -> Iterator[str]:
    for base in node.bases:
        yield ast.unparse(base).partition("[")[0].rpartition(".")[2]


def test_the_list_names_modules(modules: dict[str, Module]) -> None:
    assert set(NAMES) <= set(modules)
    assert len(NAMES) > 90


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_module_holds_nothing_that_mypyc_does_otherwise(
    name: str, modules: dict[str, Module], classes: set[str]
) -> None:
    protocols = set()
    nodes = list(ast.walk(modules[name].tree))
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            assert set(bases(node)) <= KNOWN_BASES | classes, node.name
            if "Protocol" in bases(node):
                protocols |= set(node.body)
    for node in nodes:
        assert not isinstance(node, ast.AsyncFunctionDef) or node in protocols, (
            f"{node.name}: compiled coroutines that wait for others in turn did not end"
        )
        if isinstance(node, ast.FunctionDef) and holds_something(node):
            returned = ast.unparse(node.returns or ast.Constant(None))
            made = {ast.unparse(each) for each in node.decorator_list}
            assert returned.startswith("Generator[") or "contextmanager" in made, (
                f"{node.name} lets go of something at its end: let it be a Generator, which can be closed"
            )


def test_nothing_outside_inherits_from_a_compiled_class(
    modules: dict[str, Module], classes: set[str]
) -> None:
    # Of all modules, few have to be parsed; "):" ends the bases, as ruff formats them.
    header = re.compile(r"^\s*class \w+\((.*?)\):", re.MULTILINE | re.DOTALL)
    wrong = []
    for name, module in modules.items():
        named = {word for found in header.findall(module.text) for word in WORD.findall(found)}
        if name in NAMES or not named & classes:
            continue
        outside = [node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
        compiled = classes - {node.name for node in outside}
        wrong += [f"{name}.{node.name}" for node in outside if compiled & set(bases(node))]
    assert wrong == []


def holds_something(function: ast.FunctionDef) -> bool:
    """A generator that pauses inside `with`, or before a `finally`."""
    todo: list[tuple[ast.AST, bool]] = [(each, False) for each in function.body]
    while todo:
        node, inside = todo.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom) and inside:
            return True
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            continue
        inside = (
            inside
            or isinstance(node, ast.With)
            or bool(isinstance(node, ast.Try) and node.finalbody)
        )
        todo += [(child, inside) for child in ast.iter_child_nodes(node)]
    return False
