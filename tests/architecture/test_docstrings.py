"""Docstrings of modules and public names begin with a noun or a verb, not with "what" or "where"."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

from tests.architecture.source_tree import ROOT, Module, all_modules, parse_module

WORDS = r"(How|That|Those|What|Where|Whether|Who|Whose|Whom)\b"
"""First words after which a reader must find the noun in the code."""
VAGUE = re.compile(WORDS)
IN_TEXT = re.compile('"""\\s*' + WORDS)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def vague_docstrings(module: Module) -> Iterator[str]:
    """Dotted name and first line of each docstring that begins so.

    Of the module, its public classes, functions, methods and properties, and of public names that are
    assigned in the module, a class or `__init__`.
    """
    return (
        f"{name}: {text.splitlines()[0]}"
        for name, text in _docstrings(module.tree, module.name)
        if VAGUE.match(text)
    )


def _docstrings(node: Documented, name: str) -> Iterator[tuple[str, str]]:
    yield name, ast.get_docstring(node) or ""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
        return
    for each, behind in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(each, Documented):
            if _is_public(each.name):
                yield from _docstrings(each, f"{name}.{each.name}")
        elif isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant):
            for target in _assigned(each):
                if _is_public(target):
                    yield f"{name}.{target}", inspect.cleandoc(str(behind.value.value))


def _assigned(node: ast.stmt) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id
        elif isinstance(target, ast.Attribute):
            yield target.attr


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name.startswith("__")


def test_a_docstring_says_what_a_public_thing_is() -> None:
    modules = [module for module in all_modules() if module.package != "tests"]
    # Of all modules, few have to be parsed.
    found = [vague_docstrings(module) for module in modules if IN_TEXT.search(module.text)]
    assert [text for texts in found for text in texts] == []


def test_the_docstring_of_the_rules_names_each_of_their_modules() -> None:
    found = (path for path in (ROOT / "raft").iterdir() if path.suffix in ("", ".py"))
    modules = {path.stem for path in found if not path.name.startswith("__")}
    text = (ROOT / "raft" / "__init__.py").read_text()
    assert modules - set(re.findall(r"`(\w+)`", text)) == set()


def test_a_docstring_without_a_noun_is_found_wherever_it_stands() -> None:
    text = (
        "'''What is here.'''\n"
        "LIMIT = 1\n"
        "'''How many there may be.'''\n"
        "_LIMIT = 2\n"
        "'''How many there may be.'''\n"
        "class A:\n"
        "    '''Who asks.'''\n"
        "    end: int\n"
        "    '''Where it ends.'''\n"
        "    def __init__(self):\n"
        "        self.begin = 0\n"
        "        '''Where it begins.'''\n"
        "    @property\n"
        "    def read(self):\n"
        "        '''Where it stops.\n\n        Exclusive.'''\n"
        "    async def ask(self): '''Whether there is more.'''\n"
        "    def __len__(self): '''How many there are.'''\n"
        "    def _own(self): '''What only A calls.'''\n"
        "    def whole(self): '''Whatever is there; that much is noun enough.'''\n"
        "class _B:\n"
        "    def end(self): '''Where it ends.'''\n"
        "def f():\n"
        "    '''Those of A.'''\n"
        "    def inner(): '''What f needs.'''\n"
    )
    assert list(vague_docstrings(parse_module("m", text))) == [
        "m: What is here.",
        "m.LIMIT: How many there may be.",
        "m.A: Who asks.",
        "m.A.end: Where it ends.",
        "m.A.__init__.begin: Where it begins.",
        "m.A.read: Where it stops.",
        "m.A.ask: Whether there is more.",
        "m.A.__len__: How many there are.",
        "m.f: Those of A.",
    ]
