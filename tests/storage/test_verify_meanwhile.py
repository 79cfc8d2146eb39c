"""A log is verified beside the node that writes it: what goes or comes meanwhile is no damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quorumd.storage.epoch_checkpoint import parse_epochs, render_epochs
from quorumd.storage.layout import index_path, time_index_path
from quorumd.storage.verify.segment import SegmentFacts, walk_segment
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.helpers import DIRECTORY
from tests.storage.verified_node import Node
from tests.storage.verifying import put_real_snapshot, verified


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_snapshot_that_comes_meanwhile_waits_for_no_log(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of what a node has appended since."""

    def made_then(fs: FaultyFileSystem, path: Path, *rest: Any, **options: Any) -> SegmentFacts:
        if path == node.segment(-1):
            put_real_snapshot(fs, node.ends[-1] + 50, 100)
        return walk_segment(fs, path, *rest, **options)

    monkeypatch.setattr("quorumd.storage.verify.log.walk_segment", made_then)
    done = verified(fs=node.fs)
    assert (done.texts, done.notes) == ([], [])


def test_the_log_of_a_node_that_deletes_its_first_segment_meanwhile_begins_behind_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleted_before(
        fs: FaultyFileSystem, path: Path, *rest: Any, **options: Any
    ) -> SegmentFacts:
        if path == node.segment(1):
            for number in (0, 1):
                if fs.exists(node.segment(number)):
                    fs.remove(node.segment(number))
        return walk_segment(fs, path, *rest, **options)

    monkeypatch.setattr("quorumd.storage.verify.log.walk_segment", deleted_before)
    facts = verified(fs=node.fs).facts
    assert (facts.start_offset, facts.segments) == (node.bases[2], len(node.bases) - 2)


def removes_the_third(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def removed_before(
        fs: FaultyFileSystem, path: Path, *rest: Any, **options: Any
    ) -> SegmentFacts:
        if path == node.segment(2) and fs.exists(path):
            fs.remove(path)
        return walk_segment(fs, path, *rest, **options)

    monkeypatch.setattr("quorumd.storage.verify.log.walk_segment", removed_before)


def test_a_segment_that_goes_from_the_middle_is_missed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    removes_the_third(node, monkeypatch)
    done = verified(fs=node.fs)
    assert [finding.path for finding in done.findings].count(node.segment(3)) == 1
    assert done.facts.start_offset == node.bases[0]


def test_what_was_found_is_said_once_though_a_segment_goes_meanwhile(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fs.flip(node.segment(0), 90)
    removes_the_third(node, monkeypatch)
    paths = [finding.path for finding in verified(fs=node.fs).findings]
    assert (paths.count(node.segment(0)), paths.count(node.segment(3))) == (1, 1)


def test_an_epoch_that_begins_meanwhile_contradicts_no_file(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = DIRECTORY / "leader-epoch-checkpoint"
    present = node.fs.contents(path)
    former = render_epochs(parse_epochs(present)[:-1])

    def begun_then(fs: FaultyFileSystem, path_: Path, *rest: Any, **options: Any) -> SegmentFacts:
        if path_ == node.segment(-1):
            fs.put(path, present)
        return walk_segment(fs, path_, *rest, **options)

    node.fs.put(path, former)
    assert verified(fs=node.fs).texts != []
    monkeypatch.setattr("quorumd.storage.verify.log.walk_segment", begun_then)
    assert verified(fs=node.fs).texts == []


@pytest.mark.parametrize("of", [index_path, time_index_path])
def test_the_indexes_of_the_segment_that_a_node_writes_are_in_its_memory(
    node: Node, of: Callable[[Path, int], Path]
) -> None:
    path = of(DIRECTORY, node.bases[-1])
    for data in (node.fs.contents(path)[:-12], bytes(24), b"x"):
        node.fs.put(path, data)
        assert verified(fs=node.fs).texts == []
    node.fs.remove(path)
    done = verified(fs=node.fs)
    assert (done.texts, done.notes) == ([], [])
