"""`quorumd-pipeline audit`: exit codes, what it prints and writes, and the same with Spark."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from quorumd.pipeline.audit import FINDINGS, AuditTask, TaskResult, audit, in_this_process
from quorumd.pipeline.audit.processes import ProcessRunner
from quorumd.pipeline.audit_command import FINDINGS_FILE, SHOWN_MAX, spark_runner
from quorumd.storage import layout
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import PARTITION_DIRECTORY
from tests.pipeline import planting
from tests.pipeline.quick_start import COMMAND
from tests.storage.helpers import append, batch, open_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.live

BATCHES = [batch(10 * i, count=10, epoch=1 + i // 8, value_bytes=200) for i in range(40)]


@pytest.fixture
def replicas(tmp_path: Path) -> list[Path]:
    """Three logs of four segments, without the small files of a node."""
    found = []
    for name in ("a", "b", "c"):
        folder = tmp_path / name
        (folder / PARTITION_DIRECTORY).mkdir(parents=True)
        size = 10 * len(BATCHES[0])
        log = open_log(RealFileSystem(), folder / PARTITION_DIRECTORY, segment_bytes=size)
        for number, data in enumerate(BATCHES):
            append(log, data, number * 10, number * 10 + 10)
        log.close()
        found.append(folder)
    return found


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, "audit", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_sound_replicas_end_with_0(replicas: list[Path]) -> None:
    done = command(*replicas)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "sound"), done.stderr
    # All replicas are found in the directory above them, too.
    assert command(replicas[0].parent).returncode == 0


def test_damage_ends_with_3_and_is_told_as_text_json_and_parquet(
    replicas: list[Path], tmp_path: Path
) -> None:
    at = planting.place(replicas[1], 1, 3)
    planting.flip_byte(at)
    folder = tmp_path / "audit" / "today"
    done = command(*replicas, "--findings", folder)
    assert done.returncode == 3
    assert (
        f"offsets {at.header.base_offset} to {at.header.last_offset}, {replicas[1]}" in done.stdout
    )
    assert f"{at.path}, byte {at.position}" in done.stdout
    assert done.stdout.splitlines()[-1] == "NOT SOUND: 1 problem"
    table = pq.read_table(folder / FINDINGS_FILE)
    assert table.schema.equals(FINDINGS)
    told = json.loads(command(*replicas, "--output", "json").stdout)
    assert told["sound"] is False
    assert told["findings"] == table.to_pylist()
    (finding,) = told["findings"]
    assert (finding["kind"], finding["severity"]) == ("bad_crc", "damage")
    assert told["bytes_read"] >= 3 * len(b"".join(BATCHES))
    assert [path.name for path in folder.iterdir()] == [FINDINGS_FILE]


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_full_disk_for_the_findings_hides_none(
    replicas: list[Path], tmp_path: Path, is_damaged: bool
) -> None:
    if is_damaged:
        planting.flip_byte(planting.place(replicas[1], 1, 3))
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / f".{FINDINGS_FILE}.part").symlink_to("/dev/full")
    done = command(*replicas, "--findings", folder)
    assert done.returncode == (3 if is_damaged else 1)
    assert done.stderr == (
        f"Error: {folder / FINDINGS_FILE} can't be written: No space left on device\n"
    )
    assert done.stdout.splitlines()[-1] == ("NOT SOUND: 1 problem" if is_damaged else "sound")
    assert ("DAMAGED" in done.stdout) == is_damaged
    assert list(folder.iterdir()) == []


def test_a_folder_for_findings_that_cannot_be_made_is_told_before_the_audit(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "findings"
    nothing_to_audit = tmp_path / "empty"
    nothing_to_audit.mkdir()
    done = command(nothing_to_audit, "--findings", folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: {folder}: Not a directory\n"


def test_of_a_spoilt_disk_people_see_the_beginning_and_programs_everything(
    replicas: list[Path],
) -> None:
    data = b"".join(batch(400 + number, epoch=9) for number in range(2 * SHOWN_MAX + 4))
    spoilt = bytearray(data)
    size = len(batch(400, epoch=9))
    spoilt[size - 1 :: 2 * size] = b"\1" * (SHOWN_MAX + 2)
    for replica, contents in zip(replicas, (data, spoilt, data), strict=True):
        layout.log_path(replica / PARTITION_DIRECTORY, 400).write_bytes(contents)
    done = command(*replicas)
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert sum("DAMAGED" in line for line in lines) == SHOWN_MAX
    assert "  and 2 more: --findings DIR and --output json have all" in lines
    assert lines[-1] == f"NOT SOUND: {SHOWN_MAX + 2} problems"
    told = json.loads(command(*replicas, "--output", "json").stdout)
    assert len(told["findings"]) == SHOWN_MAX + 2


def test_wrong_use_ends_with_2(replicas: list[Path], tmp_path: Path) -> None:
    assert command().returncode == 2
    assert command(tmp_path / "nothing").returncode == 2
    assert command(replicas[0], "--master", "local[1]", "--cores", "2").returncode == 2
    same = command(replicas[0], replicas[0])
    assert (same.returncode, same.stdout) == (2, "")
    assert "the same directory" in same.stderr


def test_what_cannot_be_read_ends_with_1(replicas: list[Path], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = command(empty)
    assert done.returncode == 1
    assert "no log in this directory" in done.stderr
    segment = planting.segments(replicas[0])[1]
    segment.unlink()
    segment.mkdir()
    done = command(*replicas, "--output", "json")
    found = [(each["kind"], each["file"]) for each in json.loads(done.stdout)["findings"]]
    assert (done.returncode, found) == (1, [("unread", str(segment))])


def test_damage_beside_what_cannot_be_read_is_found_and_ends_with_3(replicas: list[Path]) -> None:
    segment = planting.segments(replicas[0])[1]
    segment.unlink()
    segment.mkdir()
    at = planting.place(replicas[1], 0, 1)
    planting.flip_byte(at)
    done = command(*replicas, "--output", "json")
    found = [(each["kind"], each["offset"]) for each in json.loads(done.stdout)["findings"]]
    assert done.returncode == 3
    assert ("bad_crc", at.header.base_offset) in found
    assert [kind for kind, _ in found].count("unread") == 1


def findings_of(replicas: list[Path], **how: Any) -> list[object]:
    return list(audit(replicas, range_bytes=3 * len(BATCHES[0]), **how).findings)


def plant(replicas: list[Path]) -> None:
    planting.flip_byte(planting.place(replicas[0], 0, 3))
    planting.remove(planting.place(replicas[1], 1, 3))
    planting.change_epoch(planting.place(replicas[2], 2, 3), 1)


def test_what_is_there_only_at_the_first_look_is_not_reported(replicas: list[Path]) -> None:
    at = planting.place(replicas[1], 1, 3)
    sound = at.path.read_bytes()
    planting.flip_byte(at)

    def run_tasks(tasks: Sequence[AuditTask]) -> list[tuple[int, TaskResult]]:
        done = list(in_this_process(tasks))
        at.path.write_bytes(sound)
        return done

    found = audit(replicas, run_tasks=run_tasks)
    assert (found.is_sound, found.passes) == (True, 2)


def test_several_processes_find_the_same(replicas: list[Path]) -> None:
    plant(replicas)
    alone = findings_of(replicas)
    assert len(alone) == 3
    with ProcessRunner(2, small_bytes=0) as processes:
        assert findings_of(replicas, run_tasks=processes) == alone


def test_spark_finds_the_same(replicas: list[Path], spark: SparkSession) -> None:
    plant(replicas)
    assert findings_of(replicas, run_tasks=spark_runner(spark)) == findings_of(replicas)
