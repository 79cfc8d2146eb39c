"""The order of a log is one rule, in `wire.sequence_check`; where else offsets are compared is listed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.source_tree import LINKED, Module, modules_below, parse_module

RULE = "quorumd.wire.sequence_check"
HOT = "runs once for each batch of a log, and asks the rule only about one that is out of order"
ARRAYS = "compares all batches of a file at once, in arrays"
NO_BATCH = "compares where a chunk of whole batches begins, and looks at none of them"
IN_PLACE = {
    "quorumd.pipeline.files.index.split_points": "a file's name is compared, not what comes before it",
    "quorumd.pipeline.files.plan._RangeBuilder.add": HOT,
    "quorumd.pipeline.files.plan._SegmentWalk._walk": HOT,
    "quorumd.pipeline.parse.headers._out_of_place": ARRAYS,
    "quorumd.pipeline.parse.headers._place_text": ARRAYS,
    "quorumd.raft.fetching._continues": NO_BATCH,
    "quorumd.server.translate.fetched_batches.fetched_batches": HOT,
    "quorumd.storage.log.Log.append": NO_BATCH,
    "quorumd.storage.log.Log.control_batches": "one batch is read by its offset, and compared with that",
    "quorumd.storage.log_range.LogRange._in_sequence": HOT,
    "quorumd.storage.log_writer.LogWriter._note_all": HOT,
    "quorumd.storage.log_writer.LogWriter._place": NO_BATCH,
    "quorumd.storage.recovery._Inspection._inspect_batches": HOT,
    "quorumd.storage.segment_reads._check_places": HOT,
    "quorumd.storage.segment_reads._in_order": HOT,
    "quorumd.storage.verify.segment._Walk._check_place": "a delta below 0 is told with the batch's contents",
}
SAYS_IT = re.compile(
    r"a batch with offset .* must follow|no leader has stamped it|after one of epoch"
)


def places_of(module: Module) -> Iterator[str]:
    """Dotted names of the functions that compare the first offset of a batch with the one that is due."""
    todo: list[tuple[str, ast.AST]] = [(module.name, module.tree)]
    while todo:
        name, node = todo.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{name}.{node.name}"
        is_unequal = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotEq)
        if is_unequal and "base_offset" in ast.unparse(node):
            yield name
        todo += [(name, child) for child in ast.iter_child_nodes(node)]


def product() -> list[Module]:
    folders = (modules_below(folder) for folder in (*LINKED, "quorumd"))
    return [module for modules in folders for module in modules if module.name != RULE]


def test_the_offset_of_a_batch_is_compared_in_place_only_where_that_has_a_reason() -> None:
    found = {place for module in product() for place in places_of(module)}
    assert found == IN_PLACE.keys()


def test_places_that_are_hot_ask_the_rule_what_is_wrong() -> None:
    hot = {place for place, why in IN_PLACE.items() if why == HOT}
    asking = tuple(f"{each.name}." for each in product() if f"from {RULE} import" in each.text)
    assert {place for place in hot if not place.startswith(asking)} == set()


def test_only_the_rule_says_what_is_wrong() -> None:
    assert [module.name for module in product() if SAYS_IT.search(module.text)] == []


def test_another_place_is_found() -> None:
    text = "class A:\n    def f(self, header):\n        return self.end != header.base_offset\n"
    assert list(places_of(parse_module("m", text))) == ["m.A.f"]
