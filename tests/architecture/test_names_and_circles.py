"""One name for one thing, and no module that needs itself."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest

from tests.architecture.source_tree import (
    LINKED,
    Module,
    all_modules,
    circles,
    imports_within,
    modules_below,
    parse_module,
)

PRODUCT = [module for folder in (*LINKED, "quorumd") for module in modules_below(folder)]


def names_defined_twice(modules: Iterable[Module]) -> dict[str, list[str]]:
    """Public classes and type aliases of which there is more than one, with their modules."""
    places = defaultdict(list)
    for module in modules:
        for name in _public_types(module.tree):
            places[name].append(module.name)
    return {name: where for name, where in places.items() if len(where) > 1}


def _public_types(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        else:
            continue
        yield from (name for name in names if name[0].isupper() and any(map(str.islower, name)))


def test_no_public_type_is_defined_twice_in_the_product() -> None:
    # Those of quorumd.sync are called like what they stand for.
    modules = [module for module in PRODUCT if not module.name.startswith("quorumd.sync.")]
    assert names_defined_twice(modules) == {}


@pytest.mark.long
def test_no_modules_import_each_other() -> None:
    assert circles(imports_within(all_modules())) == []


def test_a_name_that_is_defined_twice_is_found() -> None:
    first = parse_module("quorumd.a", "class Record: ...\nclass _Row: ...\nLIMIT = 1\n")
    second = parse_module("quorumd.b", "Record = int\nclass _Row: ...\nLIMIT = 2\n")
    assert names_defined_twice([first, second]) == {"Record": ["quorumd.a", "quorumd.b"]}
