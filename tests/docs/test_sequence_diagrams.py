"""Sequence diagrams of docs/architecture.md: their parts are there, and a simulated leader goes their way."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from quorumd.raft import effects, events
from quorumd.raft.effects import Effect, SendReply
from quorumd.raft.events import Event
from quorumd.raft.node import RaftNode
from quorumd.server.model import disk_jobs
from quorumd.wire.registry import APIS
from simulation.history.voter_change_requests import VoterChangeKind
from simulation.scenario import Scenario, settings_of

ROOT = Path(__file__).resolve().parents[2]
DIAGRAMS: dict[str, str] = dict(
    re.findall(
        r"^## The life of an (\w+)\n\n```mermaid\nsequenceDiagram\n(.+?)```$",
        (ROOT / "docs/architecture.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
)
OUTSIDE = {"producer", "followers", "quorumctl add-voter", "any node", "the observer"}
PARTS = re.compile(r"^ +participant \w as (\S.*)$", re.MULTILINE)
COMPOUND = re.compile(r"\b(?:[A-Z][a-z]+){2,}\b")


def names_of_classes(module: object) -> set[str]:
    return {name for name, _ in inspect.getmembers(module, inspect.isclass)}


OF_THE_CORE = names_of_classes(events) | names_of_classes(effects)
OTHERS = names_of_classes(disk_jobs) | {api.name for api in APIS.values()}


def names_in(diagram: str) -> list[str]:
    """Names of events, effects, jobs of the disk and APIs, in the order of the arrows."""
    return COMPOUND.findall(PARTS.sub("", diagram))


@contextmanager
def what_a_leader_takes_and_gives() -> Iterator[list[str]]:
    """Names of events and effects of one that leads, in the order in which they pass its border."""
    seen: list[str] = []
    step = RaftNode.step

    def step_and_note(node: RaftNode, event: Event, now_ms: int) -> list[Effect]:
        found = step(node, event, now_ms)
        if node.is_leader:
            seen.append(type(event).__name__)
            for effect in found:
                seen.append(type(effect).__name__)
                if isinstance(effect, SendReply):
                    seen.append(type(effect.reply).__name__)
        return found

    with patch.object(RaftNode, "step", step_and_note):
        yield seen


def test_both_are_there() -> None:
    assert DIAGRAMS.keys() == {"append", "AddVoter"}


@pytest.mark.parametrize("title", ["append", "AddVoter"])
def test_the_parts_and_the_names_of_a_diagram_are_those_of_the_code(title: str) -> None:
    parts = {part.partition(" (")[0] for part in PARTS.findall(DIAGRAMS[title])}
    places = [(part, ROOT / top / part) for part in parts - OUTSIDE for top in ("", "server")]
    found = {part for part, path in places if path.is_dir() or path.with_suffix(".py").is_file()}
    assert parts - OUTSIDE == found
    assert set(names_in(DIAGRAMS[title])) - OF_THE_CORE - OTHERS == set()


@pytest.mark.pure
@pytest.mark.parametrize("title", ["append", "AddVoter"])
def test_a_leader_goes_the_way_of_a_diagram(title: str) -> None:
    scenario = Scenario(1, settings_of(3, 1, is_dynamic=True))
    scenario.start()
    scenario.settle()
    with what_a_leader_takes_and_gives() as seen:
        if title == "append":
            append = scenario.append()
            scenario.run(5_000, lambda: append.acknowledged_us is not None)
        else:
            request = scenario.request(VoterChangeKind.ADD, scenario.machine(4).replica.key)
            assert scenario.outcome(request) == "done"
    wanted = [name for name in names_in(DIAGRAMS[title]) if name in OF_THE_CORE]
    assert len(wanted) > 1
    left = iter(seen)
    missing = [name for name in wanted if name not in left]
    assert missing == [], seen
