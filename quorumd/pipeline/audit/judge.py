"""Who is wrong: differences of all ranges put together, and held against the rules of Raft.

Two logs that have the same offset with the same epoch are the same up to there (log matching). So other
contents under the same epoch are damage wherever they are, and so are different epochs if the logs agree
again behind them. A log may end with records of another epoch that were never committed: a leader that
was cut off keeps them until it has fetched. That is no damage, unless they are below the committed bound
or of an epoch that the replica has never heard of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from quorumd.pipeline.audit.compare import Difference, EpochStart
from quorumd.pipeline.audit.findings import Finding, Kind
from quorumd.pipeline.audit.survey import Surveyed
from storage import layout


@dataclass(slots=True)
class _Run:
    """Differences one behind the other, among the same replicas."""

    first: Difference
    end: int
    only_epoch: bool


def judge(
    surveys: Sequence[Surveyed], differences: Sequence[Difference], committed: int
) -> list[Finding]:
    """One finding for each run of differences; `committed` is the committed bound (exclusive)."""
    return [
        finding
        for run in _runs(sorted(differences))
        for finding in _judged(surveys, run, committed)
    ]


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


def _judged(surveys: Sequence[Surveyed], run: _Run, committed: int) -> list[Finding]:
    if tail := _uncommitted_tail(surveys, run, committed):
        return [
            Finding(
                kind=Kind.UNCOMMITTED_TAIL,
                offset=run.first.start,
                end_offset=max(surveys[number].end_offset for number in tail),
                replicas=_labels(surveys, tail),
                what=f"it ends with records of epoch {_epoch_of(run.first, tail[0])} that others do not"
                " have, and nothing says that they were committed: the next fetch replaces them",
            )
        ]
    kind = Kind.DIFFERENT_EPOCH if run.only_epoch else Kind.DIFFERENT_RECORDS
    majority, wrong = _sides(run.first)
    sides = "; ".join(
        f"{' and '.join(_labels(surveys, group))}: epoch {epoch}"
        for group, epoch in zip(run.first.groups, run.first.epochs, strict=True)
    )
    what = "the batches differ" if kind is Kind.DIFFERENT_RECORDS else "the epochs differ"
    if not majority:
        what += ", and no majority says which replica is wrong"
    return [
        Finding(
            kind=kind,
            offset=run.first.start,
            end_offset=run.end,
            replicas=_labels(surveys, wrong),
            against=_labels(surveys, majority),
            what=f"{what} ({sides})",
        )
    ]


def _sides(difference: Difference) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(the majority, the others); without a majority () and all."""
    everybody = tuple(sorted(number for group in difference.groups for number in group))
    largest = difference.groups[0]
    if len(largest) > 1 and 2 * len(largest) > len(everybody):
        return largest, tuple(number for number in everybody if number not in largest)
    return (), everybody


def _uncommitted_tail(
    surveys: Sequence[Surveyed], run: _Run, committed: int
) -> tuple[int, ...] | None:
    """The replicas whose logs end with this run, if that is all that it means."""
    first = run.first
    if first.start < committed or len(set(first.epochs)) < len(first.epochs):
        return None
    for number in (number for group in first.groups for number in group):
        newest = surveys[number].leader_epoch
        if newest is not None and _epoch_of(first, number) > newest:
            return None
    ending = [
        group
        for group in first.groups
        if all(surveys[number].end_offset <= run.end for number in group)
    ]
    if len(first.groups) - len(ending) > 1 or not ending:
        return None
    # Of logs that all end here, the one with the newest epoch is what the others will get.
    newest_epoch = max(first.epochs)
    losing = [group for group in ending if _epoch_of(first, group[0]) < newest_epoch] or ending
    return tuple(sorted(number for group in losing for number in group))


def _epoch_of(difference: Difference, number: int) -> int:
    return next(
        epoch
        for group, epoch in zip(difference.groups, difference.epochs, strict=True)
        if number in group
    )


def _labels(surveys: Sequence[Surveyed], numbers: Sequence[int]) -> tuple[str, ...]:
    return tuple(surveys[number].label for number in numbers)


def epoch_findings(found: Surveyed, starts: Sequence[EpochStart]) -> list[Finding]:
    """Epochs that go back from one range to the next, or that the replica never heard of.

    `starts` are in the order of the log.
    """
    findings = []
    for before, start in pairwise(starts):
        if start.epoch < before.epoch:
            what = f"a batch of epoch {start.epoch} after one of epoch {before.epoch}"
            findings.append(_of_epoch(found, Kind.EPOCH_ORDER, start, what))
    newest = found.leader_epoch
    if newest is not None:
        for start in starts:
            if start.epoch > newest:
                what = (
                    f"a batch of epoch {start.epoch}, but the newest epoch that the replica has seen"
                    f" is {newest}"
                )
                findings.append(_of_epoch(found, Kind.UNKNOWN_EPOCH, start, what))
                break
    return findings


def _of_epoch(found: Surveyed, kind: Kind, start: EpochStart, what: str) -> Finding:
    return Finding(
        kind=kind,
        offset=start.offset,
        end_offset=start.offset + 1,
        replicas=(found.label,),
        what=what,
        file=str(layout.log_path(found.replica.log_directory, start.segment_base)),
        position=start.position,
    )


def lag_findings(surveys: Sequence[Surveyed], committed: int) -> list[Finding]:
    """Replicas that end before others do; running followers are always a little behind."""
    end = max((each.covered_end for each in surveys), default=0)
    found = []
    for each in surveys:
        here = each.covered_end
        if here < end:
            behind = max(0, committed - here)
            proof = f", {behind} of them known to be committed" if behind else ""
            found.append(
                Finding(
                    kind=Kind.LAG,
                    offset=here,
                    end_offset=end,
                    replicas=(each.label,),
                    what=f"it ends {end - here} offsets before the longest log{proof}",
                )
            )
    return found
