"""Which package may import which, what the core may not touch, and the habits of every file.

The rules are checked on import statements and syntax trees, so that a forbidden import is found
also where it stands inside a function.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from tests.architecture.source_tree import (
    LINKED,
    PACKAGES,
    ROOT,
    Module,
    all_modules,
    calls_of,
    imported_names,
    imports_of,
    modules_below,
    package_of,
    parse_module,
    text_files,
)

# Beside itself, what a package may import of ours; a name stands for the module and all below it.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "raft": frozenset(),
    "wire": frozenset(),
    "config": frozenset({"quorumd.raft.types"}),
    "security": frozenset({"quorumd.config"}),
    "storage": frozenset(
        {
            "quorumd.config.java_properties",
            "quorumd.raft.types",
            "quorumd.wire.control_records",
            "quorumd.wire.errors",
            "quorumd.wire.keyed_records",
            "quorumd.wire.metadata_records",
            "quorumd.wire.metadata_topic",
            "quorumd.wire.record_walk",
            "quorumd.wire.records",
            "quorumd.wire.schema",
            "quorumd.wire.sequence_check",
            "quorumd.wire.snapshot_records",
        }
    ),
    "server": frozenset(
        {
            "quorumd.config",
            "quorumd.raft",
            "quorumd.security",
            "quorumd.storage",
            "quorumd.version",
            "quorumd.version_option",
            "quorumd.wire",
        }
    ),
    "quorumd": frozenset(
        {
            "quorumd.config.errors",
            "quorumd.config.properties",
            "quorumd.config.secrets",
            "quorumd.config.tls",
            "quorumd.security",
            "quorumd.wire",
            "quorumd.storage.backup_manifest",
            "quorumd.storage.kafka_export",
            "quorumd.storage.layout",
            "quorumd.storage.reader",
            "quorumd.storage.verify",
            "quorumd.raft.types",
        }
    ),
    "simulation": frozenset(f"quorumd.{folder}" for folder in LINKED),
    "chaos": frozenset(
        {
            "bench.common",
            "quorumd.storage.reader",
            "quorumd.wire",
            "simulation.checkers",
            "simulation.history",
            "simulation.violation",
        }
    ),
    "bench": frozenset({"quorumd", "tests.pipeline.spark_kafka_jars"}),
}
# What a user's program needs is public.
FOR_EXAMPLES = frozenset({"quorumd", "quorumd.sync", "quorumd.testing"})
# What a part of a package may import beside what the whole of it may.
PART_MAY_IMPORT: dict[str, frozenset[str]] = {
    # It loads the daemon before it forks nodes, which run what the command `quorumd` runs. Nothing else of
    # the library loads it: this is a process of its own.
    "quorumd.testing.node_host": frozenset(
        {"quorumd.server.main", "quorumd.server.page", "quorumd.server.run"}
    ),
    # For a node's page it reads that node's files; it writes none.
    "quorumd.cli.claims_reader": frozenset(
        {
            "quorumd.storage.batch_walk",
            "quorumd.storage.errors",
            "quorumd.storage.filesystem",
        }
    ),
    # It reads the files of nodes, and their rules for unfinished writes; it writes none.
    "quorumd.pipeline": frozenset(
        {
            "quorumd.storage.batch_walk",
            "quorumd.storage.errors",
            "quorumd.storage.filesystem",
            "quorumd.storage.index",
            "quorumd.storage.meta_properties",
            "quorumd.storage.quorum_state",
            "quorumd.storage.torn_tail",
        }
    ),
}
# The core as the daemon sees it: what enters and leaves it, plain values, and `RaftNode` itself.
RAFT_FOR_SERVER = frozenset(
    {
        "quorumd.raft.config",
        "quorumd.raft.control",
        "quorumd.raft.effects",
        "quorumd.raft.errors",
        "quorumd.raft.events",
        "quorumd.raft.node.RaftNode",
        "quorumd.raft.roles.Role",
        "quorumd.raft.status",
        "quorumd.raft.types",
    }
)
# Recovery hands the log's offsets, epochs and voter sets to the core.
MAKES_LOG_VIEW = "quorumd.server.disk.recovered_log"
# Usable without Spark and without Java.
WITHOUT_SPARK = (
    "quorumd.pipeline.audit",
    "quorumd.pipeline.files",
    "quorumd.pipeline.parse",
    "quorumd.pipeline.schemas",
)
# Time, randomness, ids and reasons are handed to the core or leave it as effects.
NOT_IN_RAFT = frozenset(
    {
        "asyncio",
        "datetime",
        "importlib",
        "logging",
        "multiprocessing",
        "os",
        "random",
        "secrets",
        "select",
        "selectors",
        "socket",
        "threading",
        "time",
    }
)
GENERATES_UUID = re.compile(r"(^|\.)(uuid[1-8]|getnode|urandom)$")
TOUCHES_DISK = frozenset({"fcntl", "glob", "mmap", "os", "shutil", "tempfile"})
DISK_CALL = re.compile(r"(^open|^io\.open|\.(read|write)_(text|bytes))$")
LINES_MAX = 500
TEST_LINES_MAX = 610
# How the project came to be is no part of it. "Session" alone is a word of Kafka's protocol.
PROVENANCE = re.compile(
    r"/work/|\bshared/|design\.md|contracts\.md|kafka-facts|examples-to-follow|bench-peers"
    r"|\bissues? (#?\d|show)|\bthis issue\b|\b(this|previous|next|other|my) session\b",
    re.IGNORECASE,
)
REVERSE_DNS = re.compile(r"\b(getnameinfo|gethostbyaddr|getfqdn)\b")
BARE_EXCEPT = re.compile(r"\bexcept\s*:")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
SILENCED = re.compile(
    r"#\s*(?:type:\s*ignore|noqa)(?:\[[\w, -]*\]|:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?"
)

OURS = {package: modules_below(package) for package in PACKAGES}
PACKAGE_MODULES = [module for modules in OURS.values() for module in modules]
ALL_MODULES = all_modules()
OWN_NAMES = frozenset(module.name for module in PACKAGE_MODULES)


def violations_of_direction(module: Module, own_names: frozenset[str]) -> Iterator[str]:
    allowed = MAY_IMPORT[module.package]
    for part, more in PART_MAY_IMPORT.items():
        if _is_below(module.name, part):
            allowed |= more
    for line, name in imports_of(module, own_names):
        is_ours = name.partition(".")[0] in (*PACKAGES, "tests")
        # Without "quorumd." it is another package, or whatever lies beside a user's program.
        is_bare = name.partition(".")[0] in LINKED
        if not is_bare and package_of(name) == module.package:
            continue
        if is_ours and not any(_is_below(name, top) for top in allowed):
            yield f"{module.path}:{line} imports {name}"


def _is_below(name: str, top: str) -> bool:
    return name == top or name.startswith(f"{top}.")


def imports_of_spark(module: Module) -> Iterator[str]:
    if not any(_is_below(module.name, part) for part in WITHOUT_SPARK):
        return
    for line, name in imports_of(module, frozenset()):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            yield f"{module.path}:{line} imports {name}"


def violations_in_an_example(module: Module) -> Iterator[str]:
    for line, name in imports_of(module, OWN_NAMES):
        if name.partition(".")[0] in (*PACKAGES, "tests") and name not in FOR_EXAMPLES:
            yield f"{module.path}:{line} imports {name}"


def violations_in_raft(module: Module) -> Iterator[str]:
    for line, name in imports_of(module, frozenset()):
        top = name.partition(".")[0]
        if top in NOT_IN_RAFT or (
            not _is_below(name, "quorumd.raft") and top not in sys.stdlib_module_names
        ):
            yield f"{module.path}:{line} imports {name}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module == "uuid":
            used = [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.Attribute):
            used = [(node.lineno, node.attr)]
        else:
            continue
        for line, name in used:
            if GENERATES_UUID.search(name):
                yield f"{module.path}:{line} uses {name}"


def violations_of_the_core(module: Module) -> Iterator[str]:
    """What the daemon imports of the rules, or reads of their state, past `RaftNode`."""
    for line, name in imported_names(module):
        allowed = RAFT_FOR_SERVER
        if module.name == MAKES_LOG_VIEW:
            allowed |= {"quorumd.raft.log_view"}
        is_of_core = _is_below(name, "quorumd.raft")
        if is_of_core and not any(_is_below(name, each) for each in allowed):
            yield f"{module.path}:{line} imports {name}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr == "core":
            yield f"{module.path}:{node.lineno} reads {ast.unparse(node)}"


def violations_in_storage(module: Module) -> Iterator[str]:
    if module.name == "quorumd.storage.filesystem":
        return
    for line, name in imports_of(module, frozenset()):
        if name.partition(".")[0] in TOUCHES_DISK:
            yield f"{module.path}:{line} imports {name}"
    for line, name in calls_of(module):
        if DISK_CALL.search(name):
            yield f"{module.path}:{line} calls {name}"


def violations_of_silence(module: Module) -> Iterator[str]:
    """A silenced check without a reason behind it on the line."""
    for number, line in enumerate(module.text.splitlines(), 1):
        match = SILENCED.search(line)
        if match and len(re.findall(r"\w+", line[match.end() :])) < 3:
            yield f"{module.path}:{number} silences a check without saying why"


def lines_matching(pattern: re.Pattern[str]) -> Iterator[str]:
    for path in text_files():
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if match := pattern.search(line):
                yield f"{path}:{number} says {match.group()!r}"


# --- the project obeys


def test_packages_import_only_what_they_may() -> None:
    found = [
        text for module in PACKAGE_MODULES for text in violations_of_direction(module, OWN_NAMES)
    ]
    assert found == []


def test_examples_import_the_public_library_only() -> None:
    examples = modules_below("examples")
    assert len(examples) > 0
    assert [text for module in examples for text in violations_in_an_example(module)] == []


def test_what_reads_logs_does_so_without_spark() -> None:
    assert [text for module in OURS["quorumd"] for text in imports_of_spark(module)] == []


def test_raft_has_no_clock_no_randomness_no_input_and_no_output() -> None:
    assert [text for module in OURS["raft"] for text in violations_in_raft(module)] == []


def test_the_daemon_sees_the_core_from_outside() -> None:
    assert [text for module in OURS["server"] for text in violations_of_the_core(module)] == []


def test_only_storage_filesystem_touches_the_disk() -> None:
    assert [text for module in OURS["storage"] for text in violations_in_storage(module)] == []


def test_every_module_says_what_it_is() -> None:
    # Ruff (D100, D104) looks at public ones only.
    private = [module for module in ALL_MODULES if module.path.name.startswith("_")]
    written = [module for module in private if module.text or module.package != "tests"]
    assert [str(m.path) for m in written if not ast.get_docstring(m.tree)] == []


def test_no_file_is_longer_than_its_limit() -> None:
    lengths = [(str(m.path), len(m.text.splitlines())) for m in ALL_MODULES]
    too_long = [
        (path, lines)
        for path, lines in lengths
        if lines > (TEST_LINES_MAX if path.startswith("tests/") else LINES_MAX)
    ]
    assert too_long == []


def test_no_bare_except() -> None:
    # Of all modules, few have to be parsed.
    handlers = [
        (module.path, node)
        for module in ALL_MODULES
        if BARE_EXCEPT.search(module.text)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler)
    ]
    assert [f"{path}:{node.lineno}" for path, node in handlers if node.type is None] == []


def test_no_address_is_asked_for_its_name() -> None:
    """Who answers for an address need not be who has it: reverse DNS says nothing about a certificate."""
    ours = [module for module in ALL_MODULES if module.package != "tests"]
    assert [str(each.path) for each in ours if REVERSE_DNS.search(each.text)] == []


def test_no_file_speaks_of_how_it_came_to_be() -> None:
    assert list(lines_matching(PROVENANCE)) == []


def test_nothing_is_left_to_be_done() -> None:
    assert list(lines_matching(UNFINISHED)) == []


def test_every_silenced_check_has_its_reason() -> None:
    assert [text for module in ALL_MODULES for text in violations_of_silence(module)] == []


# --- the checks find what they are for


def test_a_forbidden_import_is_found_in_every_spelling() -> None:
    text = (
        "import quorumd.raft.node\n"
        "from quorumd.raft import types, node\n"
        "from quorumd.wire import records\n"
        "from quorumd.wire.messages import vote\n"
        "def late():\n"
        "    from quorumd.server.main import main\n"
        "from . import log\n"
        "from ...raft import node\n"
        "from wire import records\n"
    )
    names = frozenset(
        {
            "quorumd.raft.types",
            "quorumd.raft.node",
            "quorumd.wire.records",
            "quorumd.wire.schema",
            "quorumd.wire.messages",
            "quorumd.storage.log",
        }
    )
    module = parse_module("quorumd.storage.sub.segment", text)
    assert sorted(violations_of_direction(module, names)) == [
        "quorumd/storage/sub/segment.py:1 imports quorumd.raft.node",
        "quorumd/storage/sub/segment.py:2 imports quorumd.raft.node",
        "quorumd/storage/sub/segment.py:4 imports quorumd.wire.messages",
        "quorumd/storage/sub/segment.py:6 imports quorumd.server.main",
        "quorumd/storage/sub/segment.py:8 imports quorumd.raft.node",
        "quorumd/storage/sub/segment.py:9 imports wire",
    ]


def test_a_relative_import_that_leaves_its_package_is_found() -> None:
    module = parse_module("quorumd.client.log", "from ..storage import log\nfrom ..cli import x\n")
    names = frozenset({"quorumd.storage.log"})
    assert [name for _, name in imports_of(module, names)] == ["quorumd.storage.log", "quorumd.cli"]


def test_a_part_may_import_more_than_its_package_and_nothing_beside_it_may() -> None:
    text = "from quorumd.storage import torn_tail, log\n"
    names = frozenset({"quorumd.storage.torn_tail", "quorumd.storage.log"})
    part = parse_module("quorumd.pipeline.files.plan", text)
    assert list(violations_of_direction(part, names)) == [
        "quorumd/pipeline/files/plan.py:1 imports quorumd.storage.log"
    ]
    beside = parse_module("quorumd.pipelines", text)
    assert len(list(violations_of_direction(beside, names))) == 2


def test_a_part_of_the_library_that_is_not_public_is_found_in_an_example() -> None:
    text = (
        "from quorumd import QuorumClient\nfrom quorumd.client import view\nimport bench.common\n"
    )
    assert list(violations_in_an_example(parse_module("examples.counter", text))) == [
        "examples/counter.py:2 imports quorumd.client.view",
        "examples/counter.py:3 imports bench.common",
    ]


def test_spark_is_found_where_it_must_not_be() -> None:
    text = "def late():\n    from pyspark.sql import types\n"
    inside = parse_module("quorumd.pipeline.parse.rows", text)
    assert list(imports_of_spark(inside)) == [
        "quorumd/pipeline/parse/rows.py:2 imports pyspark.sql"
    ]
    assert list(imports_of_spark(parse_module("quorumd.pipeline.session", text))) == []


def test_a_clock_a_generator_and_a_library_are_found_in_raft() -> None:
    text = (
        "import time, dataclasses\n"
        "from random import Random\n"
        "from uuid import UUID, uuid4\n"
        "import uuid\n"
        "fresh = uuid.uuid4()\n"
        "import crc32c\n"
    )
    assert sorted(violations_in_raft(parse_module("quorumd.raft.election", text))) == [
        "quorumd/raft/election.py:1 imports time",
        "quorumd/raft/election.py:2 imports random",
        "quorumd/raft/election.py:3 uses uuid4",
        "quorumd/raft/election.py:5 uses uuid4",
        "quorumd/raft/election.py:6 imports crc32c",
    ]


def test_a_daemon_that_looks_into_the_core_is_found() -> None:
    text = (
        "from quorumd.raft.node import RaftNode\n"
        "from quorumd.raft.roles import Leader, Role\n"
        "from quorumd.raft import leadership\n"
        "from quorumd.raft.log_view import LogView\n"
        "node.core.log\n"
    )
    assert list(violations_of_the_core(parse_module("quorumd.server.page.page", text))) == [
        "quorumd/server/page/page.py:2 imports quorumd.raft.roles.Leader",
        "quorumd/server/page/page.py:3 imports quorumd.raft.leadership",
        "quorumd/server/page/page.py:4 imports quorumd.raft.log_view.LogView",
        "quorumd/server/page/page.py:5 reads node.core",
    ]


def test_disk_access_is_found_in_storage_outside_the_file_system_module() -> None:
    text = "import os.path\nopen('x')\nfile_system.open('x')\npath.read_text()\n"
    assert list(violations_in_storage(parse_module("quorumd.storage.log", text))) == [
        "quorumd/storage/log.py:1 imports os.path",
        "quorumd/storage/log.py:2 calls open",
        "quorumd/storage/log.py:4 calls path.read_text",
    ]
    assert list(violations_in_storage(parse_module("quorumd.storage.filesystem", text))) == []


def test_a_silenced_check_without_reason_is_found() -> None:
    silence = "# type: " + "ignore[arg-type]"
    text = f"a = 1  {silence}\nb = 1  {silence}  # the stub is wrong about None\n"
    assert list(violations_of_silence(parse_module("quorumd.wire.types", text))) == [
        "quorumd/wire/types.py:1 silences a check without saying why"
    ]
