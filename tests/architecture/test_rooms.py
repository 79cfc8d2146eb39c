"""The daemon is built of rooms on floors: which room may import which, with no circle anywhere.

Imports for type checkers and those inside functions count: a circle that only they close is one all the
same.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache

from tests.architecture.source_tree import circles, imports_within, modules_below, parse_module

TOP = "top"
"""The modules beside the rooms: from the command line to a node that is put together."""

# From the ground up: each floor's rooms, and what each of them imports of rooms below.
FLOORS: tuple[dict[str, frozenset[str]], ...] = (
    {"model": frozenset(), "admin": frozenset(), "demo": frozenset()},
    {
        "net": frozenset({"model"}),
        "translate": frozenset({"model"}),
        "snapshots": frozenset({"model"}),
    },
    {
        "disk": frozenset({"model", "translate"}),
        "http": frozenset({"model", "net"}),
        "requests": frozenset({"model", "net", "translate"}),
        "peers": frozenset({"model", "net", "translate"}),
    },
    {"partition": frozenset({"model", "disk", "peers", "requests", "snapshots"})},
    {"page": frozenset({"model", "http", "partition", "requests"})},
    {
        TOP: frozenset(
            {
                *("admin", "demo", "disk", "http", "model", "net", "page", "partition", "peers"),
                *("requests", "snapshots", "translate"),
            }
        )
    },
)
MAY_IMPORT = {room: below for floor in FLOORS for room, below in floor.items()}
FLOOR_OF = {room: number for number, floor in enumerate(FLOORS) for room in floor}


@cache
def imports() -> dict[str, list[str]]:
    return imports_within([m for m in modules_below("server") if m.name != "quorumd.server"])


def room_of(name: str) -> str:
    """The room of a dotted name below quorumd.server; a package is in its own room."""
    rest = name.removeprefix("quorumd.server.")
    room = rest.partition(".")[0]
    return room if "." in rest or room in FLOOR_OF else TOP


def arrows(imports: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Between rooms."""
    for name, others in imports.items():
        here = room_of(name)
        yield from ((here, room_of(other)) for other in others if room_of(other) != here)


def test_every_room_has_its_floor() -> None:
    assert {room_of(name) for name in imports()} == FLOOR_OF.keys()


def test_a_room_is_above_all_rooms_that_it_imports() -> None:
    upwards = [
        (room, other)
        for room, others in MAY_IMPORT.items()
        for other in others
        if FLOOR_OF[other] >= FLOOR_OF[room]
    ]
    assert upwards == []


def test_rooms_import_just_what_they_may() -> None:
    found: dict[str, set[str]] = {room: set() for room in FLOOR_OF}
    for here, there in arrows(imports()):
        found[here].add(there)
    assert found == MAY_IMPORT


def test_no_modules_of_the_daemon_import_each_other_in_a_circle() -> None:
    assert circles(imports()) == []


def test_a_room_that_is_not_listed_and_an_arrow_for_type_checkers_are_found() -> None:
    text = "if TYPE_CHECKING:\n    from quorumd.server.page import page\n"
    modules = [
        parse_module("quorumd.server.attic.trunk", text),
        parse_module("quorumd.server.page.page", "import quorumd.server.run\n"),
        parse_module("quorumd.server.run", "from quorumd.server.attic import trunk\n"),
    ]
    imports = imports_within(modules)
    assert set(arrows(imports)) == {("attic", "page"), ("page", TOP), (TOP, "attic")}
    assert len(circles(imports)) == 3


def test_the_page_tls_and_the_demo_are_loaded_late() -> None:
    """A node without http.listen, or without TLS, and every command that starts none, do without them."""
    code = (
        "import sys, quorumd.server.main, quorumd.server.run\n"
        "late = ('quorumd.server.page', 'quorumd.server.demo', 'quorumd.server.http.exposition', "
        "'quorumd.server.node_tls', 'quorumd.security.material', 'cryptography')\n"
        "print([name for name in sys.modules if name.startswith(late)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "[]"
