"""A simulated quorum's disks, written out and audited by the pipeline: a second judge of the same run.

What the audit says is held against what the simulator knows: which disks were damaged behind their back,
and which batches each of them must hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

from quorumd.pipeline.audit import AuditFinding, AuditReport, BadReplicas, audit
from quorumd.storage.layout import LOG_SUFFIX, RESERVE, parse_snapshot_name
from quorumd.wire.batch_header import crc_is_valid, read_header
from quorumd.wire.errors import CorruptBatch
from simulation.history.replica import Batch, batch_of
from simulation.machines.disk import SimDisk
from simulation.machines.machine import Machine
from simulation.machines.node_process import LOG_DIRECTORY, STORAGE
from simulation.world import World

CRC_AT = 17
"""Bytes from the beginning of a batch to its CRC."""


def written_out(disk: SimDisk, folder: Path) -> Path:
    """Writes what a process would read from a disk below a folder; returns its storage directory.

    After `SimDisk.power_loss` that is what was durable. The reserve is left out.
    """
    for path in disk.files():
        if path.name != RESERVE:
            real = folder / path.relative_to("/")
            real.parent.mkdir(parents=True, exist_ok=True)
            real.write_bytes(disk.contents(path))
    return folder / STORAGE.relative_to("/")


def has_log(machine: Machine) -> bool:
    """False for a directory that is formatted and nothing else."""
    names = machine.disk.names(LOG_DIRECTORY)
    return any(name.endswith(LOG_SUFFIX) or parse_snapshot_name(name) for name in names)


class Auditor:
    """Audits all disks of a run, as often as it is asked to; `problems` are where judges disagree.

    `counted` has the findings by kind; "damaged", audits of a damaged disk, and "provably damaged", those of
    them in which the audit had to find something; "snapshots".
    """

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.folder = folder
        self.counted: Counter[str] = Counter()
        self.problems: list[str] = []

    def audit_disks(self, when: str) -> None:
        """Audits what the disks hold now, if any holds something."""
        paths = {
            written_out(machine.disk, self.folder / when / machine.host): machine
            for machine in self.world.cluster.machines
            if has_log(machine)
        }
        found = self._audited(when, paths)
        if found is not None:
            self.counted += found.counted()
            self.problems += [f"{when}: {problem}" for problem in found.problems()]
        rmtree(self.folder / when, ignore_errors=True)

    def _audited(self, when: str, paths: dict[Path, Machine]) -> OneAudit | None:
        """Without those whose damaged meta.properties names another cluster."""
        while paths:
            try:
                return OneAudit(audit(list(paths)), paths)
            except BadReplicas as error:
                named = (path for path in paths if f"{path} " in f"{error} ")
                bad = next((path for path in named if paths[path].is_damaged), None)
                if bad is None:
                    self.problems.append(f"{when}: {error}")
                    return None
                del paths[bad]
        return None


class OneAudit:
    """One audit, and the disks that were audited."""

    def __init__(self, audited: AuditReport, paths: dict[Path, Machine]) -> None:
        self._audited = audited
        by_label = {each.label: (each, paths[each.replica.path]) for each in audited.replicas}
        self._machines = {label: machine for label, (_, machine) in by_label.items()}
        self._surveys = {machine.host: found for found, machine in by_label.values()}
        self._data = {machine.host: _segments(machine) for machine in paths.values()}
        self.machines = list(paths.values())

    def counted(self) -> Counter[str]:
        counted = Counter(finding.kind.value for finding in self._audited.findings)
        counted["damaged"] = sum(machine.is_damaged for machine in self.machines)
        counted["provably damaged"] = sum(map(bool, map(self.wrong_for_sure, self.machines)))
        counted["snapshots"] = sum(map(len, map(_snapshots, self.machines)))
        return counted

    def problems(self) -> Iterator[str]:
        """Where the audit invents something, and where it misses something."""
        for finding in self._audited.findings:
            if finding.is_damage and not self._is_caused(finding):
                yield f"invented: {self._described(finding)}"
        for machine in self.machines:
            # What is behind the first may be part of the same finding, or follow from it.
            for what, offset in self.wrong_for_sure(machine)[:1]:
                if not self._is_named(machine, offset):
                    yield f"missed: {machine.host}, {what}"

    def _is_caused(self, finding: AuditFinding) -> bool:
        """All that are blamed are damaged; or one, if it takes two to differ."""
        are_damaged = [self._machines[label].is_damaged for label in finding.replicas]
        return all(are_damaged) or (not finding.against and any(are_damaged))

    def _is_named(self, machine: Machine, offset: int) -> bool:
        return any(
            finding.offset <= offset <= max(finding.offset, finding.end_offset - 1)
            for finding in self._audited.findings
            for label in finding.replicas
            if finding.is_damage and self._machines[label] is machine
        )

    def _described(self, finding: AuditFinding) -> str:
        hosts = [self._machines[label].host for label in finding.replicas]
        against = [self._machines[label].host for label in finding.against]
        place = f"{finding.offset}..{finding.end_offset}"
        return f"{finding.kind.value} {place} of {hosts} against {against}: {finding.what}"

    def wrong_for_sure(self, machine: Machine) -> list[tuple[str, int]]:
        """What of a damaged disk the audit has to find, in words, and at which offset."""
        if not machine.is_damaged:
            return []
        return [
            *((f"lost: {batch}", batch.base_offset) for batch in self._lost_for_sure(machine)),
            *((f"differs: {name}", end) for name, end in self._wrong_snapshots(machine)),
        ]

    def _wrong_snapshots(self, machine: Machine) -> Iterator[tuple[str, int]]:
        """A snapshot is the same everywhere, byte for byte."""
        here = _snapshots(machine)
        for other in self.machines:
            if not other.is_damaged:
                there = _snapshots(other)
                for name, data in here.items():
                    snapshot = parse_snapshot_name(name)
                    if snapshot and data != there.get(name, data):
                        yield name, snapshot[0]

    def _lost_for_sure(self, machine: Machine) -> list[Batch]:
        """Committed batches that a damaged disk must hold and does not, and a sound disk shows.

        Not decidable, and left out: what it lacks at the end of its log, unless quorum-state.json says
        that it was committed, because that may as well be an unfinished write.
        """
        survey = self._surveys[machine.host]
        if survey.end_offset < max(survey.snapshot_ends, default=0):
            # A snapshot was copied: the log is given up at the next start.
            return []
        last_segment = max((each.base_offset for each in survey.replica.segments), default=0)
        sure_end = max(survey.end_offset, survey.applied_offset, last_segment)
        return [
            batch
            for batch in machine.replica.synced
            if survey.start_offset <= batch.base_offset
            and batch.end_offset <= min(sure_end, self._audited.committed)
            and not _holds(self._data[machine.host], batch)
            and self._is_elsewhere(batch)
        ]

    def _is_elsewhere(self, batch: Batch) -> bool:
        return any(
            not machine.is_damaged and _holds(self._data[machine.host], batch)
            for machine in self.machines
        )


def _segments(machine: Machine) -> list[bytes]:
    return [data for name, data in _log_files(machine) if name.endswith(LOG_SUFFIX)]


def _snapshots(machine: Machine) -> dict[str, bytes]:
    return {name: data for name, data in _log_files(machine) if parse_snapshot_name(name)}


def _log_files(machine: Machine) -> Iterator[tuple[str, bytes]]:
    disk = machine.disk
    for path in disk.files():
        if path.parent == LOG_DIRECTORY:
            yield path.name, disk.contents(path)


def _holds(segments: list[bytes], batch: Batch) -> bool:
    """The batch is there, byte for byte, wherever."""
    crc = batch.identity.crc.to_bytes(4, "big")
    for data in segments:
        at = data.find(crc)
        while at >= 0:
            if _is_at(data, at - CRC_AT, batch):
                return True
            at = data.find(crc, at + 1)
    return False


def _is_at(data: bytes, position: int, batch: Batch) -> bool:
    if position < 0:
        return False
    try:
        header = read_header(data, position)
    except CorruptBatch:
        return False
    return batch_of(header) == batch and crc_is_valid(data, position, header)
