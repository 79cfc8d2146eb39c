"""Verdict on the replicas: differences of all ranges put together, and held against the rules of Raft.

Two logs that have the same offset with the same epoch are the same up to there (log matching). So other
contents under the same epoch are damage wherever they are, and so are different epochs if the logs agree
again behind them. But a log may end with records that were never committed, and others may have later
ones, committed long since, in their place: a leader that was cut off keeps its own until it has fetched.
What decides is the newest log, the one that ends with the highest epoch: it has all that is committed
(Raft, leader completeness). Where another one goes apart from it for good, its end was never committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from quorumd.pipeline.audit.compare import Difference, EpochChange
from quorumd.pipeline.audit.findings import AuditFinding, FindingKind
from quorumd.pipeline.audit.scan import ScannedReplica
from quorumd.storage import layout
from quorumd.wire.sequence_check import epoch_problem


class UncommittedTail(NamedTuple):
    """From offset `start` to its end a replica (by number) has records of `epoch` and on, that were never
    committed."""

    start: int
    epoch: int
    replica: int


class Verdict(NamedTuple):
    """The findings that the differences amount to; `tails` are differences that are no damage."""

    findings: list[AuditFinding]
    tails: list[UncommittedTail]


@dataclass(slots=True)
class _Run:
    """Differences one behind the other, among the same replicas."""

    first: Difference
    end: int
    only_epoch: bool


def reach_verdict(
    replicas: Sequence[ScannedReplica],
    differences: Sequence[Difference],
    starts: Sequence[Sequence[EpochChange]],
    committed: int,
) -> Verdict:
    """One finding for each run of differences, one note for tails that begin alike.

    `starts` are each replica's epochs, in the order of its log; of a log that was read in part, those at
    its end at least. `committed` is the committed bound (exclusive).
    """
    ordered = sorted(differences)
    tails = _tails(replicas, ordered, starts, committed)
    left = [each for each in (_without(tails, one) for one in ordered) if each is not None]
    findings = [_damage_finding(replicas, run) for run in _runs(left)]
    return Verdict(findings + _notes(replicas, tails), tails)


# --- logs that end otherwise


def _tails(
    replicas: Sequence[ScannedReplica],
    differences: Sequence[Difference],
    starts: Sequence[Sequence[EpochChange]],
    committed: int,
) -> list[UncommittedTail]:
    if not differences:
        return []
    last = [each[-1].epoch if each else -1 for each in starts]
    found: list[UncommittedTail] = []
    newer: list[int] = []
    for number in sorted(
        range(len(replicas)), key=lambda n: (-last[n], -replicas[n].end_offset, n)
    ):
        # Of two logs that end with the same epoch, one holds the other.
        ways = [
            _final_divergence(replicas, differences, number, n)
            for n in newer
            if last[n] > last[number]
        ]
        apart = min(filter(None, ways), key=lambda way: way[0].start, default=[])
        tail = _tail(replicas[number], number, apart, starts[number], committed)
        if tail is None:
            newer.append(number)
        else:
            found.append(tail)
    return found


def _tail(
    found: ScannedReplica,
    number: int,
    apart: Sequence[Difference],
    starts: Sequence[EpochChange],
    committed: int,
) -> UncommittedTail | None:
    """The end of a log that a newer one does not have, unless it was committed."""
    if not apart:
        return None
    bound = _known_committed(found, starts)
    if all(each.only_epoch for each in apart):
        # No two leaders write the same at the same time: rather an epoch was changed.
        bound = max(bound, committed)
    first = apart[0]
    return (
        UncommittedTail(first.start, _epoch_of(first, number), number)
        if first.start >= bound
        else None
    )


def _final_divergence(
    replicas: Sequence[ScannedReplica],
    differences: Sequence[Difference],
    number: int,
    newer: int,
) -> list[Difference]:
    """The differences up to the end of one log, from the offset on where the replica diverges for good."""
    found: list[Difference] = []
    end = min(replicas[number].end_offset, replicas[newer].end_offset)
    for each in reversed(differences):
        side, other = _side_of(each, number), _side_of(each, newer)
        if side is None or other is None or side == other or each.start >= end:
            continue
        if each.end != end or each.epochs.count(each.epochs[side]) > 1:
            break
        if any(_is_unheard_of(replicas[n], _epoch_of(each, n)) for n in (number, newer)):
            break
        found.append(each)
        end = each.start
    return found[::-1]


def _is_unheard_of(found: ScannedReplica, epoch: int) -> bool:
    return found.leader_epoch is not None and epoch > found.leader_epoch


def _known_committed(found: ScannedReplica, starts: Sequence[EpochChange]) -> int:
    """The committed bound (exclusive) that the replica itself knew, as far as its log has it."""
    bound = found.applied_offset
    for snapshot in found.replica.snapshots:
        if _holds(found, starts, snapshot.end_offset, snapshot.epoch):
            bound = max(bound, snapshot.end_offset)
        elif snapshot is found.replica.snapshots[-1]:
            # The snapshot was copied, and takes the place of the whole log at the next start.
            return 0
    return bound


def _holds(
    found: ScannedReplica, starts: Sequence[EpochChange], end_offset: int, epoch: int
) -> bool:
    """The log has the record before `end_offset` in this epoch, as far as the log was read."""
    if end_offset <= found.start_offset:
        return True
    if end_offset > found.end_offset:
        return False
    before = [each.epoch for each in starts if each.offset < end_offset]
    return not before or before[-1] == epoch


def _side_of(difference: Difference, number: int) -> int | None:
    return next((at for at, group in enumerate(difference.groups) if number in group), None)


def _epoch_of(difference: Difference, number: int) -> int:
    side = _side_of(difference, number)
    assert side is not None, "it is one of those that differ"
    return difference.epochs[side]


def _without(tails: Sequence[UncommittedTail], difference: Difference) -> Difference | None:
    """The difference without replicas whose tails explain it; None if the others agree."""
    ended = {tail.replica for tail in tails if tail.start <= difference.start}
    sides = [
        (tuple(number for number in group if number not in ended), epoch)
        for group, epoch in zip(difference.groups, difference.epochs, strict=True)
    ]
    left = sorted((side for side in sides if side[0]), key=lambda side: (-len(side[0]), side[0]))
    if len(left) < 2:
        return None
    groups, epochs = zip(*left, strict=True)
    return difference._replace(groups=groups, epochs=epochs)


def _notes(
    replicas: Sequence[ScannedReplica], tails: Sequence[UncommittedTail]
) -> list[AuditFinding]:
    alike: dict[tuple[int, int], list[int]] = {}
    for tail in tails:
        alike.setdefault((tail.start, tail.epoch), []).append(tail.replica)
    return [
        AuditFinding(
            kind=FindingKind.UNCOMMITTED_TAIL,
            offset=start,
            end_offset=max(replicas[number].end_offset for number in numbers),
            replicas=_labels(replicas, numbers),
            what=f"it ends with records of epoch {epoch} where the newest log has others, and nothing"
            " says that they were committed: the next fetch replaces them",
        )
        for (start, epoch), numbers in sorted(alike.items())
    ]


# --- damage


def _runs(differences: Sequence[Difference]) -> list[_Run]:
    runs: list[_Run] = []
    for each in differences:
        last = runs[-1] if runs else None
        if last is not None and last.end == each.start and _same_sides(last.first, each):
            last.end = each.end
            last.only_epoch &= each.only_epoch
        else:
            runs.append(_Run(each, each.end, each.only_epoch))
    return runs


def _same_sides(one: Difference, other: Difference) -> bool:
    """As far as both have the replicas, the same ones agree; a log that has ended is in no group."""
    sides = {number: at for at, group in enumerate(one.groups) for number in group}
    others = [{sides.get(number) for number in group} for group in other.groups]
    if any(len(each) != 1 or None in each for each in others):
        return False
    return len({each for side in others for each in side}) == len(others)


def _damage_finding(replicas: Sequence[ScannedReplica], run: _Run) -> AuditFinding:
    kind = FindingKind.DIFFERENT_EPOCH if run.only_epoch else FindingKind.DIFFERENT_RECORDS
    majority, wrong = _sides(run.first)
    sides = "; ".join(
        f"{' and '.join(_labels(replicas, group))}: epoch {epoch}"
        for group, epoch in zip(run.first.groups, run.first.epochs, strict=True)
    )
    what = "the batches differ" if kind is FindingKind.DIFFERENT_RECORDS else "the epochs differ"
    if not majority:
        what += ", and no majority says which replica is wrong"
    return AuditFinding(
        kind=kind,
        offset=run.first.start,
        end_offset=run.end,
        replicas=_labels(replicas, wrong),
        against=_labels(replicas, majority),
        what=f"{what} ({sides})",
    )


def _sides(difference: Difference) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(the majority, the others); without a majority () and all."""
    all_replicas = tuple(sorted(number for group in difference.groups for number in group))
    largest = difference.groups[0]
    if len(largest) > 1 and 2 * len(largest) > len(all_replicas):
        return largest, tuple(number for number in all_replicas if number not in largest)
    return (), all_replicas


def _labels(replicas: Sequence[ScannedReplica], numbers: Sequence[int]) -> tuple[str, ...]:
    return tuple(replicas[number].label for number in numbers)


def epoch_findings(found: ScannedReplica, starts: Sequence[EpochChange]) -> list[AuditFinding]:
    """Epochs that go back from one range to the next, or that the replica never heard of.

    `starts` are in the order of the log.
    """
    findings = []
    for before, start in pairwise(starts):
        what = epoch_problem(start.epoch, before.epoch)
        if what:
            findings.append(_of_epoch(found, FindingKind.EPOCH_ORDER, start, what))
    newest = found.leader_epoch
    if newest is not None:
        for start in starts:
            if start.epoch > newest:
                what = (
                    f"a batch of epoch {start.epoch}, but the newest epoch that the replica has seen"
                    f" is {newest}"
                )
                findings.append(_of_epoch(found, FindingKind.UNKNOWN_EPOCH, start, what))
                break
    return findings


def _of_epoch(
    found: ScannedReplica, kind: FindingKind, start: EpochChange, what: str
) -> AuditFinding:
    return AuditFinding(
        kind=kind,
        offset=start.offset,
        end_offset=start.offset + 1,
        replicas=(found.label,),
        what=what,
        file=str(layout.log_path(found.replica.log_directory, start.segment_base)),
        position=start.position,
    )


def lag_findings(replicas: Sequence[ScannedReplica], committed: int) -> list[AuditFinding]:
    """Replicas that end before others do; running followers are always a little behind."""
    end = max((each.covered_end for each in replicas), default=0)
    found = []
    for each in replicas:
        here = each.covered_end
        if here < end:
            behind = max(0, committed - here)
            proof = f", {behind} of them known to be committed" if behind else ""
            found.append(
                AuditFinding(
                    kind=FindingKind.LAG,
                    offset=here,
                    end_offset=end,
                    replicas=(each.label,),
                    what=f"it ends {end - here} offsets before the longest log{proof}",
                )
            )
    return found
