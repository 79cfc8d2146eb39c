"""Any one byte of any segment changed: the audit finds it, where it is, and finds nothing else."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from quorumd.pipeline.audit import FindingKind, audit
from quorumd.pipeline.audit import run as run_module
from quorumd.pipeline.files import plan as plan_module
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import PARTITION_DIRECTORY
from tests.pipeline import planting
from tests.storage.helpers import append, batch, open_log

BATCHES = [batch(10 * i, count=10, epoch=1 + i // 8, value_bytes=30) for i in range(24)]
SIZE = len(BATCHES[0])
HEADER_BYTES = 61
FLIPS = 60


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "_PAUSE_S", 0.0)
    monkeypatch.setattr(run_module, "_PAUSE_S", 0.0)


def make(folder: Path) -> Path:
    """Three segments of eight batches, ten records each."""
    directory = folder / PARTITION_DIRECTORY
    directory.mkdir(parents=True)
    log = open_log(RealFileSystem(), directory, segment_bytes=8 * SIZE)
    for number, data in enumerate(BATCHES):
        append(log, data, number * 10, number * 10 + 10)
    log.close()
    return folder


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_changed_byte_is_found_where_it_is(tmp_path: Path, seed: int) -> None:
    replicas = [make(tmp_path / name) for name in ("a", "b", "c")]
    random = Random(seed)
    for _ in range(FLIPS // 3):
        victim = random.choice(replicas)
        segment = random.choice(planting.segments(victim))
        number = random.randrange(8)
        # Most of a batch is behind its header, most of what can go wrong is in it.
        within = random.randrange(random.choice((HEADER_BYTES, SIZE)))
        sound = segment.read_bytes()
        at = number * SIZE + within
        changed = (sound[at] + random.randrange(1, 256)) % 256
        planting.write(segment, at, bytes([changed]))
        found = audit(replicas, range_bytes=random.choice((1, 3 * SIZE, 1 << 20)))
        segment.write_bytes(sound)
        case = f"{segment}, batch {number}, byte {within}: {sound[at]} became {changed}"
        if int(segment.stem) + number * 10 == 230 and found.is_sound:
            # As the last batch of all it may be an unfinished write.
            assert FindingKind.TORN_TAIL in {each.kind for each in found.findings}, case
            continue
        (finding,) = (each for each in found.findings if each.is_damage)
        assert finding.offset == int(segment.stem) + number * 10, case
        assert finding.replicas == (str(victim),), case
