"""The next step of one replica: the rules get an event, and what they ask for is carried out."""

from __future__ import annotations

from quorumd.raft.invariants import InvariantViolation, check_step
from simulation.exhaustive.frozen import (
    Traffic,
    request_slot,
)
from simulation.exhaustive.host import Host
from simulation.exhaustive.labels import Labels
from simulation.exhaustive.messages import (
    Records,
)
from simulation.exhaustive.replica import (
    Crash,
    Happening,
    Local,
    Outcome,
    Stored,
    disk_after,
)


def started(stored: Stored, records: Records, traffic: Traffic) -> Local:
    """A replica that has just started from this disk, seen from itself."""
    labels = Labels(1, 2, 3)
    host = Host(labels, traffic, stored, records, (), (), records, None)
    host.start()
    return host.outcome({}, None).local


def step(
    local: Local,
    happening: Happening,
    labels: Labels,
    traffic: Traffic,
    notes: list[str] | None = None,
) -> Outcome:
    """Takes the next happening to this replica; `notes` gets it in words."""
    if isinstance(happening, Crash):
        return _restart(local, happening, labels, traffic, notes)
    host = Host.of(local, labels, traffic)
    if notes is not None:
        host.notes = notes
    before = host.node.core.capture()
    asked = dict(host.node.core.requests.in_flight)
    try:
        completed = host.let(happening)
        check_step(before, host.node.core.capture())
        host.check()
    except AssertionError as error:
        return Outcome(local, violation=violation_text(error))
    return host.outcome({i: request_slot(item, labels) for i, item in asked.items()}, completed)


def violation_text(error: AssertionError) -> str:
    """The text of a broken invariant, or of an assertion of the core."""
    kind = "" if isinstance(error, InvariantViolation) else "an assertion of the core: "
    return f"{kind}{error}"


def _restart(
    local: Local, crash: Crash, labels: Labels, traffic: Traffic, notes: list[str] | None
) -> Outcome:
    stored, records = disk_after(local, crash)
    host = Host(labels, traffic, stored, records, (), (), records, local.granted)
    if notes is not None:
        host.notes = notes
    try:
        host.start()
        host.check()
    except AssertionError as error:
        return Outcome(local, violation=violation_text(error))
    outcome = host.outcome({}, None)
    return outcome._replace(forgotten=tuple(slot for slot, _ in local.node.in_flight))
