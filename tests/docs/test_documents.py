"""What the documents name is there: tests, files, configuration keys with their defaults, metrics."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quorumd
from quorumd.pipeline.cli import main as pipeline_main
from quorumd.pipeline.schemas import TABLES
from quorumd.pipeline.source.options import NAMES
from quorumd.server.http.exposition import QuorumCollector
from quorumd.server.node import Node
from quorumd.server.node_status import access_as_json
from quorumd.server.partition.health import PartitionHealth
from tests.architecture.source_tree import LINKED, modules_below
from tests.architecture.test_rooms import SERVER, TOP
from tests.docs import config_reference, role_diagram

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
REPLACED = re.compile(
    r"wish|newcomer|doubtful|useless|whereabouts|outbid|hurry|nobody|somebody|whoever"
    r"|tell_leader|told_in|going_back|strike_voters|leave_out|quorum_?back|cleaner|cleaning",
    re.IGNORECASE,
)
OPERATIONS = (ROOT / "docs/operations.md").read_text()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    links = re.findall(r"\]\(([^):#]*)(?:#([^):]*))?\)", path.read_text())
    targets = [((path.parent / to) if to else path, heading) for to, heading in links]
    assert [str(file) for file, _ in targets if not file.exists()] == []
    assert [f"{file}#{it}" for file, it in targets if it and it not in headings_of(file)] == []


def headings_of(path: Path) -> set[str]:
    """The names by which links lead to a document's headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_tests_that_are_named_exist(path: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", path.read_text()))
    sources = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    assert named - set(re.findall(r"def (test_\w+)", sources)) == set()


def test_new_names_in_the_changelog_exist_and_old_ones_are_gone() -> None:
    table = (ROOT / "CHANGELOG.md").read_text().partition("\n| before | now |\n")[2]
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| ")]
    before, now = (
        set(re.findall(r"`quorumd\.(\w+)", each)) for each in map("".join, zip(*rows, strict=True))
    )
    assert {name for name in now if not hasattr(quorumd, name)} == set()
    assert (before - now) & {*quorumd.__all__} == set()
    assert len(rows) > 8


def test_the_words_of_the_glossary_are_those_of_the_code() -> None:
    """As they stand, or as parts of names: `high watermark`, `high_watermark`, `HighWatermark`."""
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    cells = [cell for cell in rows if cell.strip("-*") == cell and cell != "word"]
    words = [word.strip() for cell in cells for word in re.split("[,;]", cell.partition("(")[0])]
    code = "\n".join(
        module.text for folder in (*LINKED, "quorumd") for module in modules_below(folder)
    )
    unused = [
        word
        for word in words
        if not re.search(re.sub("[ -]", "[ _.-]?", word), code, re.IGNORECASE)
    ]
    assert len(words) > 60
    assert unused == []
    assert len(words) == len(set(words))


def test_words_that_the_glossary_replaced_do_not_come_back() -> None:
    """As parts of names; text may use them in their everyday sense."""
    folders = (*LINKED, "quorumd", "simulation", "chaos")
    names = {
        f"{module.path}: {name}"
        for folder in folders
        for module in modules_below(folder)
        for name in re.findall(r"\b(?:class|def) (\w+)", module.text)
        if REPLACED.search(name)
    }
    assert names == set()


def test_the_keys_of_the_configuration_are_explained_as_they_are_declared() -> None:
    _, found, after = config_reference.parts_of(OPERATIONS)
    how = "run python -m tests.docs.config_reference --write"
    assert found == config_reference.table(), how
    assert config_reference.EXAMPLE.read_text() == config_reference.example(), how
    assert after


def test_every_metric_is_listed() -> None:
    text = Path(QuorumCollector.collect.__code__.co_filename).read_text()
    own = set(re.findall(r'"(quorumd_\w+)"', text))
    windowed = {"election_latency", "commit_latency"}
    of_the_kips = {
        *re.findall(r'_raft\(\s*"(\w+)"', text),
        *(f"{name}_{figure}" for name in windowed for figure in ("avg", "max")),
    }
    named = set(re.findall(r"\b((?:quorumd|raft_manager)_\w+)", OPERATIONS))
    known = {name.removesuffix("_total") for name in named}
    assert {f"raft_manager_{name}" for name in of_the_kips} - known == set()
    assert own - known == set()


def test_every_key_of_the_status_is_explained() -> None:
    parts = (Node.status, PartitionHealth.as_json, access_as_json)
    shown = [key for part in parts for key in keys_told_by(part)]
    _, _, after = OPERATIONS.partition("\n`/status` is one JSON object:\n\n")
    table, _, _ = after.partition("\n\n")
    cells = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    explained = [key for cell in cells for key in re.findall(r"`(\w+)`", cell)]
    assert sorted(explained) == sorted({*shown})
    assert len(shown) > 30


def keys_told_by(function: Callable[..., object]) -> Iterator[str]:
    """Keys of the outermost dictionaries in a function, and those that are set later."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    for node in ast.walk(tree):
        match node:
            case ast.Return(ast.Dict(keys)) | ast.AnnAssign(value=ast.Dict(keys)):
                yield from (str(key.value) for key in keys if isinstance(key, ast.Constant))
            case ast.Subscript(slice=ast.Constant(str(key)), ctx=ast.Store()):
                yield key


def test_log_lines_are_explained_by_their_areas_and_with_their_words() -> None:
    code = "\n".join(module.text for folder in LINKED for module in modules_below(folder))
    table = OPERATIONS.partition("\n| area and message | meaning |\n")[2].partition("\n\n")[0]
    cells = "\n".join(re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE))
    lines = re.findall(r"`(\w+) +([^`]+)`(?: / `([^`]+)`)?", cells)
    assert {area for area, *_ in lines} == {*re.findall(r'\bLogger\("(\w+)"\)', code)}
    messages = [message for _, *several in lines for message in several]
    words = [
        word.strip()
        for message in messages
        for word in re.split(r"\.\.\.|<\w+>|\b\w+=", message)
        if word.strip()
    ]
    assert [word for word in words if word not in code] == []
    assert len(words) > 15


def test_every_option_and_column_of_the_data_source_is_listed() -> None:
    text = (ROOT / "docs/spark-source.md").read_text()
    options, _, columns = text.partition("\n## Columns")
    rows = re.findall(r"^\| (`[^|]+) \|", options, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w.]+)`", row)} == set(NAMES)
    for table, schema in TABLES.items():
        (paragraph,) = re.findall(rf"^`{table}`, .+?(?=\n\n)", columns, re.MULTILINE | re.DOTALL)
        listed = re.findall(r"`(\w+)`", paragraph.partition(":")[2])
        assert [name for name in listed if name in schema.names] == schema.names


def test_the_script_for_spark_submit_runs_nothing_in_processes_that_load_it(tmp_path: Path) -> None:
    """As multiprocessing loads it, in the processes of an audit."""
    text = (ROOT / "docs/spark-cluster.md").read_text()
    lines = text.partition("in `pipeline.py`\n")[2].partition("\nthis is the same")[0]
    script = tmp_path / "pipeline.py"
    script.write_text(textwrap.dedent(lines))
    found = runpy.run_path(str(script), run_name="__mp_main__")
    assert found["main"] is pipeline_main


def test_the_diagram_of_the_roles_is_that_of_the_transition_table() -> None:
    _, found, after = role_diagram.parts_of(role_diagram.DOCUMENT.read_text())
    assert found == role_diagram.diagram(), "run python -m tests.docs.role_diagram --write"
    assert after


def test_the_floors_of_the_daemon_are_those_of_the_rules() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    rows = dict(re.findall(r"^\| (top|beside|\d) \| (.+) \|$", text, re.MULTILINE))
    top = rows.pop("top").partition(":")[0]
    modules = {path.stem for path in (ROOT / "server").glob("*.py")}
    assert {*re.findall(r"`(\w+)`", top)} <= modules
    found = {name: {*re.findall(r"(?:^| · )`(\w+)`", row)} for name, row in rows.items()}
    # Nothing but the top imports rooms that stand beside the others.
    inner = [floor for floor in SERVER.floors if TOP not in floor]
    below = {room for floor in inner for rooms in floor.values() for room in rooms}
    beside = SERVER.floors[0].keys() - below
    floors = {str(at): {*floor} - beside for at, floor in enumerate(inner, start=2)}
    assert found == {**floors, "beside": beside}


def test_files_that_the_map_names_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    folders = [path.name for path in ROOT.iterdir() if path.is_dir()]
    named = set(re.findall(rf"`((?:{'|'.join(folders)})/[\w/.]*)`", text))
    assert len(named) > 40
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
