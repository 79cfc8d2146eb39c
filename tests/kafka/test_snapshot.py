"""Kafka's own tools read the snapshots that are built here."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from quorumd.cli.main import run
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import snapshot_path
from quorumd.wire import snapshot_records
from quorumd.wire.control_records import (
    KRaftVersion,
    KRaftVersionFeature,
    KRaftVoter,
    KRaftVoterEndpoint,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
)
from quorumd.wire.records import Record, build_batch
from tests.server.snapshot_logs import Batches, build, write_log
from tests.storage.helpers import START_MS
from tests.support.kafka_jars import requires_java
from tests.support.kafka_tools import run_tool

VOTERS = KRaftVoters(
    voters=(
        KRaftVoter(
            voter_id=1,
            voter_directory_id=UUID(int=(1 << 78) + 5),
            endpoints=(KRaftVoterEndpoint(name="CONTROLLER", host="h1", port=9093),),
            kraft_version_feature=KRaftVersionFeature(max_supported_version=1),
        ),
    ),
    cluster_id="cluster",
)


def log_with(producer_id: int) -> Batches:
    batches = Batches(Random(0), epoch=4)
    voters = (LeaderChangeVoter(voter_id=1),)
    batches.add_control(LeaderChange(leader_id=1, voters=voters, granting_voters=voters))
    batches.add_control(KRaftVersion(kraft_version=1), VOTERS)
    for codec in range(5):
        records = [
            Record(
                timestamp=START_MS + number * 1000 - codec * 10**9,
                key=b"key %d %d" % (codec, number),
                value=b"value %d" % number,
                headers=(("h", b"1"),) * (number % 3),
            )
            for number in range(40)
        ]
        has_producer = producer_id >= 0
        batch = build_batch(
            records,
            base_offset=batches.ends[-1],
            epoch=4,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=0 if has_producer else -1,
            base_sequence=codec * 40 if has_producer else -1,
        )
        batches.add(batch, len(records))
    return batches


@requires_java
@pytest.mark.timeout(300)
@pytest.mark.parametrize("producer_id", [-1, 5])
def test_dump_log_reads_a_snapshot_with_producers_and_without(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    producer_id: int,
) -> None:
    monkeypatch.setattr(snapshot_records, "SNAPSHOT_BATCH_BYTES", 2000)
    batches = log_with(producer_id)
    fs = RealFileSystem()
    write_log(fs, batches, tmp_path)
    built, data = build(fs, batches.ends[-1], directory=tmp_path, complete=True)
    path = snapshot_path(tmp_path, built.id)
    assert path.read_bytes() == data

    dump = run_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--print-data-log", "--files", str(path)
    )
    assert dump.returncode == 0, dump.stderr
    for complaint in ("invalid bytes", "isvalid: false", "Error", "Exception", "Mismatch"):
        assert complaint.lower() not in (dump.stdout + dump.stderr).lower()
    assert "Snapshot end offset: 203, epoch: 4" in dump.stdout
    count = 200 + 4 + (producer_id >= 0)
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+)", dump.stdout, re.M)]
    assert offsets == list(range(count))
    for word in ("SnapshotHeader", "KRaftVersion", "KRaftVoters", "SnapshotFooter"):
        assert word in dump.stdout
    assert "key 3 17 payload: value 17" in dump.stdout
    assert "headerKeys: [h,h,quorumd.offset]" in dump.stdout

    capfd.readouterr()
    assert run(["dump-log", "--print-data", str(path)]) == 0
    shown, complaints = capfd.readouterr()
    assert complaints == ""
    assert "snapshot of everything below offset 203, epoch 4" in shown
    assert ("ProducerStates of 1 producer" in shown) == (producer_id >= 0)
    assert "key key 3 17  value value 17  h=1  h=1  quorumd.offset=140" in shown
