"""All mutants of a module, made at its syntax tree.

What is mutated: comparisons, `and`/`or` and each operand, conditions, `min`/`max` and `any`/`all`, sums,
integers by one, True/False; a statement is left out, or trades its place with the next one where both act.
What is not: texts, log lines, assertions, annotations, defaults, and what a module does when it is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType
from typing import Any

_ORDERINGS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.NotEq),
    ast.LtE: (ast.Lt, ast.Eq),
    ast.Gt: (ast.GtE, ast.NotEq),
    ast.GtE: (ast.Gt, ast.Eq),
}
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SUMS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGS = frozenset({"log", "_log", "logger", "_logger", "logging", "_LOG", "LOG"})
_CONTAINER_METHODS = frozenset(
    {"add", "append", "clear", "discard", "extend", "pop", "remove", "update"}
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SHOWN_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One edge moved. `key` names it in a report and stays the same when lines above it change."""

    module: str
    function: str
    line: int
    lines: tuple[int, int]
    """First and last line of the statement; a test that executes none of them can't see the mutant."""
    what: str
    """The text before and after."""
    number: int
    """Its place among the mutants of the module."""
    ordinal: int
    """Its place among those of the function that read alike."""

    @property
    def key(self) -> str:
        """Module, function, and the text before and after."""
        again = f" #{self.ordinal + 1}" if self.ordinal else ""
        return f"{self.module} {self.function}: {self.what}{again}"


@dataclass(slots=True)
class _Edit:
    """A field of a node gets another value."""

    holder: Any
    field: str
    index: int | None
    new: Any
    shown: ast.AST
    what: str = ""

    def swap(self) -> None:
        """Make it; once more takes it back."""
        if self.index is None:
            old = getattr(self.holder, self.field)
            setattr(self.holder, self.field, self.new)
        else:
            values = getattr(self.holder, self.field)
            old, values[self.index] = values[self.index], self.new
        self.new = old

    def text(self) -> str:
        if self.what:
            return self.what
        before = _unparsed(self.shown)
        self.swap()
        is_all_of_it = self.new is self.shown
        after = _unparsed(self._value() if is_all_of_it else self.shown)
        self.swap()
        return f"{before} -> {after}"

    def _value(self) -> Any:
        value = getattr(self.holder, self.field)
        return value if self.index is None else value[self.index]


def mutants_of(module: str, source: str) -> list[Mutant]:
    """All of them, in the order of the source."""
    found: list[Mutant] = []
    seen: dict[tuple[str, str], int] = {}
    for number, (function, statement, line, edit) in enumerate(_edits(ast.parse(source))):
        what = edit.text()
        ordinal = seen.get((function, what), 0)
        seen[function, what] = ordinal + 1
        lines = _lines_of(statement)
        found.append(
            Mutant(
                module=module,
                function=function,
                line=line,
                lines=lines,
                what=what,
                number=number,
                ordinal=ordinal,
            )
        )
    return found


def compiled(source: str, filename: str, number: int | None) -> CodeType:
    """The module's code with this mutant in it, or as it is."""
    tree = ast.parse(source)
    if number is not None:
        edits = list(_edits(tree))
        edits[number][3].swap()
        ast.fix_missing_locations(tree)
    return compile(tree, filename, "exec", dont_inherit=True)


def _lines_of(statement: ast.stmt) -> tuple[int, int]:
    """Of a compound statement only its head."""
    last = statement.end_lineno or statement.lineno
    body = getattr(statement, "body", None)
    if isinstance(body, list) and body:
        last = max(statement.lineno, body[0].lineno - 1)
    return statement.lineno, last


def _edits(tree: ast.Module) -> Iterator[tuple[str, ast.stmt, int, _Edit]]:
    """Function, statement, line and edit; the same for the same source."""
    for qualname, function in _functions(tree, ""):
        for statement, edit in _in_body(function, is_function=True):
            yield qualname, statement, getattr(edit.shown, "lineno", statement.lineno), edit


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Any]]:
    """Functions of the module and of its classes; functions inside of functions belong to these."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _FUNCTIONS):
            if not any(
                isinstance(word, ast.Name) and word.id == "overload"
                for word in child.decorator_list
            ):
                yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


# -- statements


def _in_body(parent: Any, *, is_function: bool = False) -> Iterator[tuple[ast.stmt, _Edit]]:
    for field in ("body", "orelse", "finalbody"):
        statements: list[ast.stmt] = getattr(parent, field, None) or []
        if not isinstance(statements, list):
            continue
        for index, statement in enumerate(statements):
            is_last = is_function and index == len(statements) - 1
            yield from _of_statement(parent, field, index, statement, is_last=is_last)
        for index, (first, second) in enumerate(pairwise(statements)):
            if _trade(first, second):
                traded = [*statements[:index], second, first, *statements[index + 2 :]]
                what = f"{_unparsed(first)}; {_unparsed(second)} -> the other way round"
                yield first, _Edit(parent, field, None, traded, first, what)
    for handler in getattr(parent, "handlers", []):
        yield from _in_body(handler)
    for case in getattr(parent, "cases", []):
        yield from _in_body(case)


def _of_statement(
    parent: Any, field: str, index: int, statement: ast.stmt, *, is_last: bool
) -> Iterator[tuple[ast.stmt, _Edit]]:
    if isinstance(statement, (ast.Assert, ast.Import, ast.ImportFrom)) or _is_log_line(statement):
        return
    if isinstance(statement, _FUNCTIONS):
        yield from _in_body(statement, is_function=True)
        return
    if _may_be_left_out(statement, is_last=is_last):
        empty = ast.copy_location(ast.Pass(), statement)
        yield (
            statement,
            _Edit(parent, field, index, empty, statement, f"{_unparsed(statement)} -> left out"),
        )
    if isinstance(statement, ast.Raise):
        return
    for edit in _of_expressions(statement):
        yield statement, edit
    yield from _in_body(statement)


def _may_be_left_out(statement: ast.stmt, *, is_last: bool) -> bool:
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant) and not _is_call_of(
            statement, {"require"}
        )
    if isinstance(statement, ast.Assign):
        return not any(isinstance(target, (ast.Name, ast.Tuple)) for target in statement.targets)
    if isinstance(statement, ast.AnnAssign):
        return statement.value is not None and not isinstance(statement.target, ast.Name)
    if isinstance(statement, ast.Return):
        return not is_last
    return isinstance(statement, (ast.AugAssign, ast.Delete, ast.Continue, ast.Break, ast.Raise))


def _trade(first: ast.stmt, second: ast.stmt) -> bool:
    """Both act, at least one by a call: their order may be seen from outside."""
    if _acts_by_call(first) and _acts_by_call(second):
        return True
    return (_acts_by_call(first) and _is_of_object(second) and not _collects(first)) or (
        _is_of_object(first) and _acts_by_call(second) and not _collects(second)
    )


def _collects(statement: ast.stmt) -> bool:
    """Adds an effect to those of the step: the state that is set beside it is seen after the step."""
    return ".append(" in ast.unparse(statement).partition("effects")[2][:9]


def _acts_by_call(statement: ast.stmt) -> bool:
    """A call of what may emit effects: no log line, no bookkeeping in a container."""
    if not isinstance(statement, ast.Expr) or _is_log_line(statement):
        return False
    call = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
    if not isinstance(call, ast.Call) or _is_call_of(statement, {"require"}):
        return False
    called = call.func
    if isinstance(called, ast.Attribute) and called.attr in _CONTAINER_METHODS:
        return "effects" in ast.unparse(called.value)
    return True


def _is_of_object(statement: ast.stmt) -> bool:
    if not isinstance(statement, (ast.Assign, ast.AugAssign)):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return any(isinstance(target, (ast.Attribute, ast.Subscript)) for target in targets)


def _is_call_of(statement: ast.stmt, names: set[str]) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in names


def _is_log_line(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    owner = call.func.value
    return isinstance(owner, ast.Name) and owner.id in _LOGS


# -- expressions


def _of_expressions(statement: ast.stmt) -> Iterator[_Edit]:
    """Of the expressions of a statement, not of the statements inside it."""
    for field, value in ast.iter_fields(statement):
        if field in ("annotation", "body", "orelse", "finalbody", "handlers", "cases"):
            continue
        values = value if isinstance(value, list) else [value]
        for position, child in enumerate(values):
            index = position if isinstance(value, list) else None
            if isinstance(child, ast.AST):
                yield from _of_expression(statement, field, index, child, statement)


def _of_expression(
    holder: ast.AST, field: str, index: int | None, node: ast.AST, shown: ast.AST
) -> Iterator[_Edit]:
    if isinstance(node, ast.JoinedStr):
        return
    if field in ("test", "ifs"):
        yield from _negated(holder, field, index, node)
    if isinstance(node, ast.Constant):
        yield from _of_constant(holder, field, index, node, shown)
    if isinstance(node, ast.UnaryOp):
        operand = node.operand
        if isinstance(node.op, ast.USub) and isinstance(operand, ast.Constant):
            if type(operand.value) is not int:
                return
            number = ast.copy_location(ast.Constant(1 - operand.value), node)
            yield _Edit(holder, field, index, number, shown)
            return
        if not isinstance(node.op, ast.Invert):
            yield _Edit(holder, field, index, node.operand, node)
    yield from _of_operators(holder, field, index, node)
    # The innermost expression that says enough is shown.
    inner = (
        node
        if isinstance(node, ast.expr) and not isinstance(node, (ast.UnaryOp, ast.Slice))
        else shown
    )
    for name, value in ast.iter_fields(node):
        if isinstance(node, ast.Lambda) and name == "args":
            continue
        if isinstance(value, ast.AST):
            yield from _of_expression(node, name, None, value, inner)
        elif isinstance(value, list):
            for position, child in enumerate(value):
                if isinstance(child, ast.AST):
                    yield from _of_expression(node, name, position, child, inner)


def _negated(holder: ast.AST, field: str, index: int | None, node: Any) -> Iterator[_Edit]:
    """Unless the mutants of the expression itself amount to it."""
    inverted = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    if not inverted and not isinstance(node, (ast.BoolOp, ast.Compare, ast.Constant)):
        negation = ast.copy_location(ast.UnaryOp(ast.Not(), node), node)
        yield _Edit(holder, field, index, negation, node)


def _of_operators(holder: ast.AST, field: str, index: int | None, node: ast.AST) -> Iterator[_Edit]:
    if isinstance(node, ast.Compare):
        for position, op in enumerate(node.ops):
            others = _ORDERINGS.get(type(op)) or (_OPPOSITES[type(op)],)
            for other in others:
                yield _Edit(node, "ops", position, other(), node)
    elif isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield _Edit(node, "op", None, other_op, node)
        for position in range(len(node.values)):
            left = [*node.values[:position], *node.values[position + 1 :]]
            rest = left[0] if len(left) == 1 else ast.copy_location(ast.BoolOp(node.op, left), node)
            yield _Edit(holder, field, index, rest, node)
    elif isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        yield _Edit(node, "op", None, _SUMS[type(node.op)](), node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _NAMES:
        yield _Edit(node.func, "id", None, _NAMES[node.func.id], node)


def _of_constant(
    holder: ast.AST, field: str, index: int | None, node: ast.Constant, shown: ast.AST
) -> Iterator[_Edit]:
    if isinstance(node.value, bool):
        numbers: list[int] = [not node.value]
    elif isinstance(node.value, int):
        numbers = [node.value + 1] if node.value == 0 else [node.value + 1, node.value - 1]
    else:
        return
    for number in numbers:
        yield _Edit(holder, field, index, ast.copy_location(ast.Constant(number), node), shown)


def _unparsed(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."
