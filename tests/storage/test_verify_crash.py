"""After any crash that a start survives, a verification finds no damage, and the same end of the log."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from quorumd.storage.filesystem import FileSystem
from tests.storage import (
    test_crash,
    test_log_start_crash,
)
from tests.storage.faulty_filesystem import FaultyFileSystem, Survival
from tests.storage.helpers import DIRECTORY, at_losses, crash_points
from tests.storage.verifying import put_real_snapshot, verified

pytestmark = pytest.mark.sim


def contents(fs: FaultyFileSystem) -> dict[str, bytes]:
    return {name: fs.contents(DIRECTORY / name) for name in fs.listdir(DIRECTORY)}


def check(fs: FaultyFileSystem, open_log_end: int, dropped: int | None) -> None:
    if not contents(fs):
        return
    before = contents(fs)
    done = verified(fs=fs)
    assert contents(fs) == before
    assert done.texts == []
    if dropped is None:
        assert done.facts.end_offset == open_log_end
    else:
        assert any("begins the log anew" in note for note in done.notes)


@pytest.mark.parametrize("survival", Survival)
@pytest.mark.parametrize(
    ("batches_per_sync", "is_large"), [(1, False), (4, False), (5, True)], ids=str
)
def test_a_crash_while_writing_is_no_damage(
    batches_per_sync: int, is_large: bool, survival: Survival
) -> None:
    points = list(crash_points(test_crash.Story(batches_per_sync, is_large).run))

    def look(at: int, story: test_crash.Story, fs: FaultyFileSystem) -> None:
        found = fs.crash(survival, Random(at))
        twin = fs.crash(survival, Random(at))
        log = story.reopen(twin)
        try:
            check(found, log.log_end_offset, log.recovery.dropped_end_offset)
        except AssertionError as error:
            error.add_note(f"power lost at call {at}, {survival}")
            raise

    chosen = frozenset(points[::3] if len(points) < 1000 else points[::19])
    at_losses(test_crash.Story(batches_per_sync, is_large), chosen, look)


@pytest.mark.parametrize("survival", Survival)
def test_a_crash_while_history_goes_or_a_log_begins_anew_is_no_damage(
    survival: Survival, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(fs: FileSystem, end_offset: int, epoch: int, directory: Path = DIRECTORY) -> object:
        return put_real_snapshot(fs, end_offset, epoch, directory)

    monkeypatch.setattr(test_log_start_crash, "put_snapshot", put)
    story_of = test_log_start_crash.Story

    def look(at: int, story: test_log_start_crash.Story, fs: FaultyFileSystem) -> None:
        found = fs.crash(survival, Random(at))
        twin = fs.crash(survival, Random(at))
        log = story.reopen(twin)
        try:
            check(found, log.log_end_offset, log.recovery.dropped_end_offset)
        except AssertionError as error:
            error.add_note(f"power lost at call {at}, {survival}")
            raise

    at_losses(story_of(), frozenset(list(crash_points(story_of().run))[::2]), look)
