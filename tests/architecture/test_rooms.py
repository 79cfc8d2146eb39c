"""Parts of quorumd with folders are built of rooms on floors: which room may import which, with no circle.

Imports for type checkers and those inside functions count: a circle that only they close is one all the
same.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property

import pytest

from tests.architecture.source_tree import (
    LINKED,
    Module,
    circles,
    imports_within,
    modules_below,
    parse_module,
)

TOP = "top"
"""The modules beside the rooms: they put together what is below, or are what all rooms stand on."""

Floors = tuple[dict[str, Set[str]], ...]
"""From the ground up: each floor's rooms, and what each of them imports of rooms below."""


@dataclass(frozen=True)
class House:
    """A part of quorumd, `name`, with its rooms: folders, or single modules beside them."""

    name: str
    folder: str
    floors: Floors

    @cached_property
    def may_import(self) -> dict[str, Set[str]]:
        return {room: below for floor in self.floors for room, below in floor.items()}

    @cached_property
    def floor_of(self) -> dict[str, int]:
        return {room: number for number, floor in enumerate(self.floors) for room in floor}

    @cached_property
    def imports(self) -> dict[str, list[str]]:
        return imports_within([*self._modules()])

    def room_of(self, name: str) -> str:
        """The room of a dotted name below the house: the innermost folder that is one.

        A package is in its own room, unless it has a room for what it lists (`client.__init__`).
        """
        room = name.removeprefix(f"{self.name}.")
        if f"{room}.__init__" in self.floor_of:
            return f"{room}.__init__"
        is_module = "." not in room
        while room not in self.floor_of and "." in room:
            room = room.rpartition(".")[0]
        return TOP if is_module and room not in self.floor_of else room

    def arrows(self, imports: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
        """Between rooms."""
        for name, others in imports.items():
            here = self.room_of(name)
            rooms = map(self.room_of, others)
            yield from ((here, there) for there in rooms if there != here)

    def _modules(self) -> Iterator[Module]:
        return (each for each in modules_below(self.folder) if each.name != self.name)


SERVER = House(
    "quorumd.server",
    "server",
    (
        {"model": set(), "admin": set(), "demo": set()},
        {"net": {"model"}, "translate": {"model"}, "snapshots": {"model"}},
        {
            "disk": {"model", "translate"},
            "http": {"model", "net"},
            "requests": {"model", "net", "translate"},
            "peers": {"model", "net", "translate"},
        },
        {"partition": {"model", "disk", "peers", "requests", "snapshots", "translate"}},
        {"page": {"model", "http", "partition", "requests"}},
        {
            TOP: {
                *("admin", "demo", "disk", "http", "model", "net", "page", "partition", "peers"),
                *("requests", "snapshots", "translate"),
            }
        },
    ),
)
LIBRARY = House(
    "quorumd",
    "quorumd",
    (
        {"version": set()},
        {"client": {"version"}, "version_option": {"version"}},
        {"client.coordination": {"client"}},
        {"client.names": {"client", "client.coordination"}},
        {"client.__init__": {"client.names"}},
        {
            "cli": {
                *("client", "client.__init__", "client.coordination", "version", "version_option")
            },
            "sync": {"client", "client.coordination"},
            "testing": set(),
        },
        {"pipeline": {"cli", "client", "version", "version_option"}, TOP: {"testing"}},
    ),
)
PIPELINE = House(
    "quorumd.pipeline",
    "quorumd/pipeline",
    (
        {"errors": set(), "schemas": set()},
        {"parse": {"schemas"}},
        {"files": {"parse", "schemas"}},
        {"metadata": {"schemas"}, "audit": {"errors", "files", "parse"}},
        {"source": {"errors", "files", "metadata", "parse", "schemas"}},
        {
            "tables": {"errors", "schemas", "source"},
        },
        {"report": {"errors", "schemas", "tables"}},
        {TOP: {"audit", "errors", "metadata", "report", "source", "tables"}},
    ),
)
VOTER_CHANGE_STEPS = ("voter_changes.checks", "voter_changes.requests", "voter_changes.voter_sets")
RAFT = House(
    "quorumd.raft",
    "raft",
    (
        {TOP: set()},
        {"voter_changes.requests": {TOP}, "voter_changes.voter_sets": {TOP}},
        {"voter_changes.checks": {TOP, "voter_changes.voter_sets"}},
        # A leader that removes itself hands its leadership over: it is below the changes.
        {"leadership_transfer": {TOP, *VOTER_CHANGE_STEPS}},
        {"voter_changes": {TOP, "leadership_transfer", *VOTER_CHANGE_STEPS}},
        {"status": {TOP, "voter_changes", "voter_changes.voter_sets"}},
        {"node": {TOP, "leadership_transfer", "status", "voter_changes"}},
    ),
)
STORAGE = House("quorumd.storage", "storage", ({TOP: set()}, {"verify": {TOP}}))
WIRE = House(
    "quorumd.wire", "wire", ({TOP: set()}, {"messages": {TOP}}, {"fast": {TOP, "messages"}})
)
HOUSES = [SERVER, LIBRARY, PIPELINE, RAFT, STORAGE, WIRE]
in_each_house = pytest.mark.parametrize("house", HOUSES, ids=lambda house: house.name)


@in_each_house
def test_every_room_has_its_floor(house: House) -> None:
    assert set(map(house.room_of, house.imports)) == house.floor_of.keys()


@in_each_house
def test_a_room_is_above_all_rooms_that_it_imports(house: House) -> None:
    upwards = [
        (room, other)
        for room, others in house.may_import.items()
        for other in others
        if house.floor_of[other] >= house.floor_of[room]
    ]
    assert upwards == []


@in_each_house
def test_rooms_import_just_what_they_may(house: House) -> None:
    found: dict[str, set[str]] = {room: set() for room in house.floor_of}
    for here, there in house.arrows(house.imports):
        found[here].add(there)
    assert found == house.may_import


@in_each_house
def test_no_modules_import_each_other_in_a_circle(house: House) -> None:
    assert circles(house.imports) == []


def test_a_room_that_is_not_listed_and_an_arrow_for_type_checkers_are_found() -> None:
    text = "if TYPE_CHECKING:\n    from quorumd.server.page import page\n"
    modules = [
        parse_module("quorumd.server.attic.trunk", text),
        parse_module("quorumd.server.page.page", "import quorumd.server.run\n"),
        parse_module("quorumd.server.run", "from quorumd.server.attic import trunk\n"),
    ]
    imports = imports_within(modules)
    assert set(SERVER.arrows(imports)) == {("attic", "page"), ("page", TOP), (TOP, "attic")}
    assert len(circles(imports)) == 3


def test_a_folder_inside_of_a_room_and_the_list_of_its_names_are_rooms_where_they_are_listed() -> (
    None
):
    names = ("client", "client.view", "client.coordination.lock", "client.new.module", "newest")
    assert [LIBRARY.room_of(f"quorumd.{name}") for name in names] == [
        *("client.__init__", "client", "client.coordination", "client", TOP)
    ]
    assert not {name.split(".")[1] for name in LIBRARY.imports} & {*LINKED}


@pytest.mark.live
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
