"""One name for one thing, and no module that needs itself."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from tests.architecture.source_tree import LINKED, Module, imports_of, modules_below, parse_module

PRODUCT = [module for folder in (*LINKED, "quorumd") for module in modules_below(folder)]
PROJECT = [*PRODUCT, *modules_below("simulation"), *modules_below("bench")]


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


def circles(modules: Iterable[Module]) -> list[list[str]]:
    """Groups of modules that import each other, wherever the import stands."""
    known = {module.name: module for module in modules}
    needs = {
        name: {to for _, to in imports_of(module, frozenset(known)) if to in known and to != name}
        for name, module in known.items()
    }
    return sorted(sorted(group) for group in _groups(needs) if len(group) > 1)


def _groups(needs: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """Strongly connected components (Tarjan), without recursion on long chains of imports."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    for root in needs:
        if root in number:
            continue
        work = [(root, iter(sorted(needs[root])))]
        number[root] = lowest[root] = len(number)
        stack.append(root)
        while work:
            name, rest = work[-1]
            for to in rest:
                if to not in number:
                    number[to] = lowest[to] = len(number)
                    stack.append(to)
                    work.append((to, iter(sorted(needs[to]))))
                    break
                if to in stack:
                    lowest[name] = min(lowest[name], number[to])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[name])
                if lowest[name] == number[name]:
                    at = stack.index(name)
                    yield set(stack[at:])
                    del stack[at:]


def test_no_public_type_is_defined_twice_in_the_product() -> None:
    assert names_defined_twice(PRODUCT) == {}


def test_no_modules_import_each_other() -> None:
    assert circles(PROJECT) == []


def test_a_name_that_is_defined_twice_is_found() -> None:
    first = parse_module("quorumd.a", "class Record: ...\nclass _Row: ...\nLIMIT = 1\n")
    second = parse_module("quorumd.b", "Record = int\nclass _Row: ...\nLIMIT = 2\n")
    assert names_defined_twice([first, second]) == {"Record": ["quorumd.a", "quorumd.b"]}


def test_a_circle_is_found_also_where_only_types_are_imported() -> None:
    texts = {
        "quorumd.a": "import quorumd.b\n",
        "quorumd.b": "from quorumd import c\n",
        "quorumd.c": "if TYPE_CHECKING:\n    from quorumd.a import X\nimport quorumd.d\n",
        "quorumd.d": "",
    }
    modules = [parse_module(name, text) for name, text in texts.items()]
    assert circles(modules) == [["quorumd.a", "quorumd.b", "quorumd.c"]]
