"""What is compiled keeps to what mypyc does as Python does; the rest it says itself, or does wrongly."""

from __future__ import annotations

import ast
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
NAMES = set(compiled_modules())
MODULES = all_modules()
COMPILED = [module for module in MODULES if module.name in NAMES]
CLASSES = {
    node.name
    for module in COMPILED
    for node in ast.walk(module.tree)
    if isinstance(node, ast.ClassDef)
}


def bases(node: ast.ClassDef) -> Iterator[str]:
    for base in node.bases:
        yield ast.unparse(base).partition("[")[0].rpartition(".")[2]


def test_the_list_names_modules() -> None:
    assert {module.name for module in COMPILED} == NAMES
    assert len(NAMES) > 90


@pytest.mark.parametrize("module", COMPILED, ids=lambda module: module.name)
def test_a_compiled_module_holds_nothing_that_mypyc_does_otherwise(module: Module) -> None:
    protocols = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            assert set(bases(node)) <= KNOWN_BASES | CLASSES, node.name
            if "Protocol" in bases(node):
                protocols |= set(node.body)
    for node in ast.walk(module.tree):
        assert not isinstance(node, ast.AsyncFunctionDef) or node in protocols, (
            f"{node.name}: compiled coroutines that wait for others in turn did not end"
        )
        if isinstance(node, ast.FunctionDef) and holds_something(node):
            returned = ast.unparse(node.returns or ast.Constant(None))
            made = {ast.unparse(each) for each in node.decorator_list}
            assert returned.startswith("Generator[") or "contextmanager" in made, (
                f"{node.name} lets go of something at its end: let it be a Generator, which can be closed"
            )


def test_nothing_outside_inherits_from_a_compiled_class() -> None:
    wrong = [
        f"{module.name}.{node.name}"
        for module in MODULES
        if module not in COMPILED
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and set(bases(node)) & CLASSES - own_classes(module)
    ]
    assert wrong == []


def own_classes(module: Module) -> set[str]:
    return {node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)}


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
