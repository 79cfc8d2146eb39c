"""What the rules know of the log, held against a plain list of the epochs of its records.

All logs of up to five records are tried.
"""

from __future__ import annotations

from itertools import combinations_with_replacement, groupby

import pytest

from quorumd.raft.control import VotersRecord
from quorumd.raft.log_view import LogView, VoterEntry
from quorumd.raft.types import OffsetAndEpoch, SnapshotId
from tests.raft.harness import CLUSTER, log_of, voter_set

EPOCHS = (1, 2, 4)
LOGS = [log for size in range(6) for log in combinations_with_replacement(EPOCHS, size)]
VOTERS = VotersRecord(voter_set(1, 2, 3), CLUSTER)


def runs(epochs: tuple[int, ...], start: int = 0) -> list[tuple[int, int]]:
    """Epoch and first offset of each run of records, those below `start` gone."""
    at = [(epoch, max(offset, start)) for offset, epoch in enumerate(epochs) if offset >= start]
    return [next(group) for _, group in groupby(at, key=lambda each: each[0])]


@pytest.mark.parametrize("epochs", LOGS, ids=str)
def test_a_truncated_log_is_the_log_that_is_left(epochs: tuple[int, ...]) -> None:
    for cut in range(len(epochs) + 1):
        for synced in range(len(epochs) + 1):
            log = log_of(*epochs)
            log.synced_end_offset = synced
            log.voter_entries = [VoterEntry(offset, VOTERS) for offset in range(-1, len(epochs))]
            assert log.truncate(cut) is (cut < len(epochs))
            left = log_of(*epochs[:cut])
            assert (log.epoch_starts, log.end) == (left.epoch_starts, left.end)
            assert log.synced_end_offset == min(synced, cut)
            assert [entry.offset for entry in log.voter_entries] == list(range(-1, cut))


@pytest.mark.parametrize("epochs", LOGS, ids=str)
def test_an_epoch_ends_where_a_later_one_begins(epochs: tuple[int, ...]) -> None:
    log = log_of(*epochs)
    for epoch in range(6):
        known = [each for each in epochs if each <= epoch]
        end = len(known)
        if not epochs or epoch >= epochs[-1]:
            expected = (len(epochs), epochs[-1] if epochs else 0)
        else:
            expected = (end, known[-1] if known else epoch)
        assert log.end_offset_for(epoch) == expected


@pytest.mark.parametrize("epochs", LOGS, ids=str)
def test_a_log_contains_those_that_end_at_one_of_its_records(epochs: tuple[int, ...]) -> None:
    for start in range(len(epochs) + 1):
        log = cleaned(epochs, start)
        for offset in range(len(epochs) + 2):
            for epoch in range(6):
                position = OffsetAndEpoch(offset, epoch)
                if offset == 0:
                    expected = start == 0
                else:
                    inside = start < offset <= len(epochs) and epochs[offset - 1] == epoch
                    expected = inside or position in log.snapshots
                assert log.contains(position) is expected, position


def cleaned(epochs: tuple[int, ...], start: int) -> LogView:
    log = log_of(*epochs)
    log.delete_prefix(start, [SnapshotId(start, epochs[start - 1])] if start else [])
    return log


@pytest.mark.parametrize("epochs", LOGS, ids=str)
def test_a_cleaned_log_has_the_epochs_that_are_left(epochs: tuple[int, ...]) -> None:
    for start in range(len(epochs) + 1):
        log = cleaned(epochs, start)
        assert log.start_offset == start
        left = runs(epochs, start)
        if not left and epochs:
            left = [(epochs[-1], start)]
        assert log.epoch_starts == left
        assert log.end == log_of(*epochs).end


@pytest.mark.parametrize("epochs", LOGS, ids=str)
def test_records_that_are_appended_one_by_one_make_the_same_log(epochs: tuple[int, ...]) -> None:
    log = LogView()
    for offset, epoch in enumerate(epochs):
        log.append(offset + 1, [(epoch, offset)])
    assert log.epoch_starts == runs(epochs)
    assert log.end == log_of(*epochs).end


def test_a_snapshot_behind_which_an_older_one_is_kept_does_not_count() -> None:
    log = LogView(snapshots=[SnapshotId(3, 1), SnapshotId(5, 2)], start_offset=6, end_offset=9)
    assert log.last_epoch == 2
    assert log.contains(OffsetAndEpoch(5, 2)) is False


def test_a_log_that_is_reset_is_empty_behind_the_snapshot_and_goes_on_in_its_epoch() -> None:
    log = log_of(1, 2, 4)
    log.voter_entries = [VoterEntry(-1, VOTERS), VoterEntry(1, VOTERS)]
    log.reset(SnapshotId(9, 4), VOTERS)
    assert (log.start_offset, log.end, log.synced_end_offset) == (9, (9, 4), 9)
    assert (log.epoch_starts, log.snapshots) == ([], [(9, 4)])
    assert [entry.offset for entry in log.voter_entries] == [-1, 8]
    assert log.end_offset_for(2) == (9, 4)
    log.append(11, [(4, 9)])
    assert log.epoch_starts == [(4, 9)]
    log.reset(SnapshotId(20, 5), None)
    assert [entry.offset for entry in log.voter_entries] == [-1]


@pytest.mark.parametrize(
    ("epochs", "named_at", "others", "has_data"),
    [
        ((1, 1), 1, (), False),
        ((1, 1, 1), 1, (), True),
        ((1, 1, 2), 1, (), False),
        ((1, 1, 2, 2), 1, (), True),
        ((1, 2, 2), 1, (), True),
        ((1, 2), 1, (), False),
        ((1, 1, 1), 1, (2,), False),
        ((1, 1, 1), 1, (0,), True),
        ((1, 1, 2, 2, 2), 1, (3,), True),
    ],
)
def test_clients_have_written_where_there_is_more_than_leaders_write(
    epochs: tuple[int, ...], named_at: int, others: tuple[int, ...], has_data: bool
) -> None:
    log = log_of(*epochs)
    entry = VoterEntry(named_at, VOTERS)
    log.voter_entries = [VoterEntry(-1, VOTERS), entry]
    log.voter_entries += [VoterEntry(offset, VOTERS) for offset in others]
    assert log.has_data_behind(entry) is has_data


def test_a_log_that_has_an_epoch_elsewhere_is_told_where_the_one_before_ends() -> None:
    log = log_of(1, 1, 2, 2, 4)
    assert log.diverging_from(OffsetAndEpoch(1, 2)) == (2, 1)
    assert log.diverging_from(OffsetAndEpoch(5, 2)) == (4, 2)
    assert log.diverging_from(OffsetAndEpoch(1, 3)) == (4, 2)
    assert log.diverging_from(OffsetAndEpoch(5, 1)) == (2, 1)


def test_a_log_of_an_epoch_below_the_first_one_here_is_not_told_its_own_end() -> None:
    log = cleaned((1, 1, 2, 4), 3)
    assert log.diverging_from(OffsetAndEpoch(3, 1)) == (3, 0)
