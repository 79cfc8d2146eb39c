"""Functions and classes of the product are short; those that are not are named, with the reason."""

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

CLASS_LINES_MAX = 400
LARGER = {
    "quorumd.server.net.connection.Connection": "each of its callbacks moves the state of one transport;"
    " what has a state of its own is beside it: incoming, connection_state, inbound_request, turns",
    "quorumd.storage.log.Log": "one order of its ends and starts for three threads; what one thread does"
    " alone is beside it: log_writer, log_range, segment_reads, tail_cache",
}


def large_classes(module: Module) -> Iterator[tuple[str, int]]:
    """Dotted name and length of each one that has too many lines."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef) and node.end_lineno:
            lines = node.end_lineno - node.lineno + 1
            if lines > CLASS_LINES_MAX:
                yield f"{module.name}.{node.name}", lines


def long_functions(module: Module) -> Iterator[tuple[str, int]]:
    """Dotted name and length of each one that has too many lines."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            lines = node.end_lineno - node.lineno + 1
            if lines > LINES_MAX:
                yield f"{module.name}.{node.name}", lines


def product() -> Iterator[Module]:
    return (module for folder in PRODUCT for module in modules_below(folder))


def test_a_function_of_the_product_fits_on_a_screen() -> None:
    found = dict(each for module in product() for each in long_functions(module))
    assert found.keys() == LONGER.keys(), found


def test_a_class_of_the_product_is_read_in_one_go() -> None:
    found = dict(each for module in product() for each in large_classes(module))
    assert found.keys() == LARGER.keys(), found


def test_what_is_too_long_is_found_wherever_it_stands() -> None:
    body = "            x = 1\n" * LINES_MAX
    text = f"class A:\n    def short(self):\n        async def long():\n{body}"
    assert list(long_functions(parse_module("m", text))) == [
        ("m.short", LINES_MAX + 2),
        ("m.long", LINES_MAX + 1),
    ]
    large = parse_module("m", "class A:\n" + "    x = 1\n" * CLASS_LINES_MAX)
    assert list(large_classes(large)) == [("m.A", CLASS_LINES_MAX + 1)]
