"""`quorumctl describe` while snapshots are copied and built."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from quorumd.cli.describe import _show_replication, description_as_dict, replication_rows
from quorumd.client.description import QuorumDescription, description_from
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumResponse,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseReplica,
    DescribeQuorumResponseSnapshotBuild,
    DescribeQuorumResponseSnapshotCopy,
    DescribeQuorumResponseTopic,
)

SIZE = 1000


def replica(replica_id: int) -> DescribeQuorumResponseReplica:
    return DescribeQuorumResponseReplica(
        replica_id=replica_id,
        replica_directory_id=UUID(int=replica_id),
        log_end_offset=50,
        last_fetch_timestamp=10,
        last_caught_up_timestamp=10,
    )


def copied(replica_id: int, position: int) -> DescribeQuorumResponseSnapshotCopy:
    return DescribeQuorumResponseSnapshotCopy(
        replica_id=replica_id,
        replica_directory_id=UUID(int=replica_id),
        end_offset=40,
        epoch=3,
        position=position,
        size_bytes=SIZE,
    )


def described(**work: Any) -> QuorumDescription:
    """Voters 1 and 2, led by 1, and observer 3."""
    partition = DescribeQuorumResponsePartition(
        leader_id=1,
        high_watermark=50,
        current_voters=(replica(1), replica(2)),
        observers=(replica(3),),
        **work,
    )
    topic = DescribeQuorumResponseTopic(partitions=(partition,))
    return description_from(DescribeQuorumResponse(topics=(topic,)), "cluster")


def test_copies_and_builds_have_a_column_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    description = described(
        snapshot_copies=(copied(2, 439), copied(3, 0), copied(4, SIZE)),
        snapshot_build=DescribeQuorumResponseSnapshotBuild(end_offset=50, permille=129),
    )
    assert [(row[0], row[5], row[6]) for row in replication_rows(description)] == [
        ("1", "Leader", "building 12 %"),
        ("2", "Follower", "copying 43 %"),
        ("3", "Observer", "copying 0 %"),
        ("4", "Observer", "copying 100 %"),
    ]
    _show_replication(description)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-1] == "Snapshot"
    assert lines[1].endswith("building 12 %")


def test_without_any_there_is_no_column(capsys: pytest.CaptureFixture[str]) -> None:
    description = described()
    assert description.joining_observers == ()
    _show_replication(description)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-1] == "Status"
    assert lines[1].endswith("Leader")


def test_programs_get_bytes_and_the_replica_that_nobody_has_heard_of_before() -> None:
    description = described(
        snapshot_copies=(copied(2, 439), copied(4, 7)),
        snapshot_build=DescribeQuorumResponseSnapshotBuild(end_offset=50, permille=129),
    )
    shown = description_as_dict(description)
    leader, follower = shown["voters"]
    assert leader["snapshot"] == {"doing": "building", "end_offset": 50, "done": 0.129}
    assert follower["snapshot"] == {
        "doing": "copying",
        "end_offset": 40,
        "epoch": 3,
        "position": 439,
        "size_bytes": SIZE,
    }
    known, newcomer = shown["observers"]
    assert known["snapshot"] is None
    assert (newcomer["replica_id"], newcomer["log_end_offset"], newcomer["status"]) == (
        4,
        -1,
        "Observer",
    )
    assert newcomer["snapshot"]["position"] == 7


def test_a_newcomer_cannot_be_made_a_voter_yet() -> None:
    description = described(snapshot_copies=(copied(4, 7),))
    assert [each.key.id for each in description.could_be_voters] == [3]


def test_an_empty_snapshot_is_not_divided_by() -> None:
    empty = DescribeQuorumResponseSnapshotCopy(replica_id=2, replica_directory_id=UUID(int=2))
    assert replication_rows(described(snapshot_copies=(empty,)))[1][6] == "copying 0 %"
