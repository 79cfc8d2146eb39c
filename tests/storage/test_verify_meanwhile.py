"""A log is verified beside the node that writes it: what goes or comes meanwhile is no damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quorumd.storage.verify.segment import SegmentFacts, walk_segment
from tests.storage.faulty_filesystem import FaultyFileSystem
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
