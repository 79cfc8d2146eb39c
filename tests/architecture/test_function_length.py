"""A function of the product fits on a screen; those that do not are named, with the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.source_tree import LINKED, Module, modules_below, parse_module

LINES_MAX = 60
"""From `def` to the last line, the docstring included."""
PRODUCT = (*LINKED, "quorumd")
ONE_LOOP = (
    "one pass over the bytes of each record: a call for each part of one costs more than the part"
)
LONGER = {
    "quorumd.wire.keyed_records.take_records": ONE_LOOP,
    "quorumd.wire.produced.check_produced": "each check of Kafka in its order, a call less for each batch",
    "quorumd.wire.record_walk.check_records": ONE_LOOP,
}


def long_functions(module: Module) -> Iterator[tuple[str, int]]:
    """Dotted name and length of each one that has too many lines."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            lines = node.end_lineno - node.lineno + 1
            if lines > LINES_MAX:
                yield f"{module.name}.{node.name}", lines


def test_a_function_of_the_product_fits_on_a_screen() -> None:
    modules = [module for folder in PRODUCT for module in modules_below(folder)]
    found = dict(each for module in modules for each in long_functions(module))
    assert found.keys() == LONGER.keys(), found


def test_a_long_function_is_found_wherever_it_stands() -> None:
    body = "            x = 1\n" * LINES_MAX
    text = f"class A:\n    def short(self):\n        async def long():\n{body}"
    assert list(long_functions(parse_module("m", text))) == [
        ("m.short", LINES_MAX + 2),
        ("m.long", LINES_MAX + 1),
    ]
