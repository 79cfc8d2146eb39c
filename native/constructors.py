"""Constructors of dataclasses as source, for what mypyc compiles: `with_constructors`.

mypyc leaves a dataclass the constructor that the library makes: Python, which sets each attribute by name.
For an event of the rules that takes 1,500 instructions in place of 150, ten times for each commit. So the
copy of the sources that is compiled has constructors written out. Each takes the place of the blank line
behind its class: lines keep their numbers.
"""

from __future__ import annotations

import ast

_OWN_CONSTRUCTOR = {"__init__", "__post_init__"}
_FROZEN = "# type: ignore[misc]  # mypy lets no code set what is frozen, not even its constructor"
_NO_ARGUMENT = ("ClassVar", "InitVar", "KW_ONLY")


def with_constructors(source: str) -> str:
    """The same module with constructors of its dataclasses.

    The library still makes those of classes with `__post_init__`, `field()` or a base of another module.
    Raises ValueError for a class without a blank line behind it.
    """
    module = ast.parse(source)
    known = {
        each.name: each
        for each in module.body
        if isinstance(each, ast.ClassDef) and _decorator(each) is not None
    }
    lines = source.split("\n")
    for each in known.values():
        constructor = _constructor(each, known)
        if constructor is None:
            continue
        end = each.end_lineno or 0
        if lines[end]:
            raise ValueError(f"class {each.name}: no blank line behind it")
        lines[end] = constructor
    return "\n".join(lines)


def _decorator(node: ast.ClassDef) -> ast.expr | None:
    """`@dataclass`, with or without arguments."""
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(called, ast.Name) and called.id == "dataclass":
            return decorator
    return None


def _constructor(node: ast.ClassDef, known: dict[str, ast.ClassDef]) -> str | None:
    """The line that holds it; None for a class that is left alone."""
    bases = [known.get(ast.unparse(base)) for base in node.bases]
    positional: list[str] = []
    keywords: list[str] = []
    names: list[str] = []
    for each in (*bases, node):
        if each is None or (each is not node and each.bases) or _is_left_alone(each):
            return None
        for field in each.body:
            if isinstance(field, ast.AnnAssign):
                name = ast.unparse(field.target)
                default = "" if field.value is None else f" = {ast.unparse(field.value)}"
                arguments = keywords if _is_keyword_only(each) else positional
                arguments.append(f"{name}: {ast.unparse(field.annotation)}{default}")
                names.append(name)
    if not names or len(set(names)) < len(names):
        return None
    arguments = ["self", *positional, *(["*", *keywords] if keywords else [])]
    sets = "; ".join(f"self.{name} = {name}" for name in names)
    return f"    def __init__({', '.join(arguments)}) -> None: {sets}  {_FROZEN}"


def _is_left_alone(node: ast.ClassDef) -> bool:
    """True if the class has a constructor already, or one that does more than to set what it is given."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name in _OWN_CONSTRUCTOR:
            return True
        if isinstance(each, ast.AnnAssign):
            annotation = ast.unparse(each.annotation)
            is_field = isinstance(each.value, ast.Call) and ast.unparse(each.value.func) == "field"
            if is_field or annotation.startswith(_NO_ARGUMENT):
                return True
    return False


def _is_keyword_only(node: ast.ClassDef) -> bool:
    decorator = _decorator(node)
    return isinstance(decorator, ast.Call) and any(
        keyword.arg == "kw_only" and ast.unparse(keyword.value) == "True"
        for keyword in decorator.keywords
    )
