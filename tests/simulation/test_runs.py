"""A fixed number of simulated runs, none of which may find anything; `make sim` runs many more."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from simulation.faults.chaos import Chaos
from simulation.options import Options
from simulation.report import command
from simulation.runner import Tally, Task, run_many, run_one
from simulation.world import World

pytestmark = pytest.mark.sim

SEEDS = range(1, 9)
"""Of each kind: voters that stay and voters that change, with the faults of the seed, or with all common
ones at once. `make sim` looks for what is new."""
REGRESSIONS = {
    "fixed": {
        492: "a read error while a start repaired the log was no storage error",
        533: "a control batch that read wrong at a start was no storage error",
        1960: "a replaced first set got another cluster id, and shut out who knew the first",
        3045: "cleaning deleted a snapshot that was completed after it was asked for",
        6210: "a truncation believed a header with a wrong bit, and cut too much",
        9693: "a batch whose offset had a wrong bit was served: no CRC covers it",
        10036: "a first voter set was replaced although clients had written behind it",
        15221: "a copy was thought older than it was: its last record was not synced yet",
    },
    "changing": {
        42: "power went while a new disk was formatted, at a call that was armed for the old one",
        79: "a forged fetch was under way until it was of the present epoch",
        115: "a new disk that copied the log took itself for the voter whose id it has",
        116: "a new leader called a voter one that was just being removed",
        122: "a leader whose snapshot was damaged tried to repair it once a minute only; later: what a"
        " process had sent arrived behind its end, and a checker took it for alive",
        216: "a follower died before it had appended what it knew to be committed",
        252: "a leader that knew nothing to be committed replaced a set that was no first one",
        313: "a follower died before it had appended what it knew to be committed",
        347: "a leader died in mid-append; what it had just committed was not known to the checkers",
        1323: "links were cut after all faults had stopped; a new leader knew no progress",
        2263: "who learnt late that it was a voter still was an observer, and stopped",
        2526: "operators had not been answered yet when an old copy was shown",
        3068: "a witness led as soon as one voter lacked records, though another had them",
        3259: "an old copy named one voter in what was not synced, and so was a quorum of its own",
        3690: "a voter kept to the address of another disk under its leader's id",
        4902: "a witness led after a leader that had just resigned: nobody else could",
        5636: "a bit was flipped in the node id of meta.properties: refused, with another error",
        7634: "a node removed a voter long after a leader was asked to and did not respond",
        8392: "a flipped bit in the first voters' ids made a voter of nobody",
        9465: "a snapshot that a disk could not read once was thought damaged for good",
        10204: "a connection to another disk under the leader's id was older than its address",
        10847: "two disks of one id joined at once: the first was new, and thought silent",
        12698: "who had a record more than the snapshot that was offered copied it for ever",
        13436: "a voter whose fetches were refused was thought silent",
        16058: "an old copy of a disk under the leader's id, which cannot follow that leader",
        99985: "a misplaced sector was believed to be a time index: a segment was skipped",
        20612: "snapshots that operators asked for in vain put off the repair of a snapshot for a minute",
        21409: "what a dying leader had committed was judged by the voters that another one knew",
        23412: "what a replica had wanted was sent long after it did not want it any more",
        24597: "a disk was lost by an operation, not by a fault, and a witness thought undisturbed",
        24842: "a voter was lost though a majority needed it: it might have been removed twice over",
        24869: "a quorum of one disk, of whose host the others had not been told",
        518539: "a leader heard late, by a connection that had died silently, of an epoch from before",
        518552: "the same, and a voter without records asked a witness first",
        518976: "a replica that got a snapshot could not know that it had been a voter meanwhile",
        500469: "a leader that had moved, called ended by a forged request, was never believed again",
        411246: "a look-up by time found what a queued deletion was about to delete",
        429163: "the same, in a log whose committed part is to be deleted whole",
        411346: "a sector of another segment was believed: a truncation cut a batch in two",
        600293: "whoever asked with a shorter log made a voter campaign that had just started, and was led",
        400236: "a fetch of an earlier role waited for a connection, and its response was taken for contact",
        760488: "a look-up by time missed a committed record that the leader's slow disk had not got yet",
        742148: "a look-up by time believed a header in which a bit had flipped, and found nothing",
        730261: "a leader, asked to hand over to itself, had lost its voters when its response left",
    },
    "damaged disks": {
        19: "a truncation believed a header with a wrong bit, and cut everything",
    },
}
"""Seeds that have found something, with the simulator as it was then, and what that was. Each bug has a
test of its own beside the code that was mended. What 100075 found, its run does not meet any more; it is a
scenario: `test_a_voter_follows_a_leader_that_has_its_id_and_another_storage_id`."""


FIXED, CHANGING = (Task(options=Options(membership=membership)) for membership in (False, True))
DISK_FAULTS = "bit flip,stale sector,misplaced sector,deposed leader,snapshot asked for,lost disk"
DAMAGED = Task(options=Options(membership=False, faults=frozenset(DISK_FAULTS.split(","))))
COMMON_FAULTS = (
    "loss,delay,reorder,silent deaths,isolate one,one way,minority partition,kill,pause,clean stop"
)
COMMON = Task(options=Options(faults=frozenset(COMMON_FAULTS.split(",")), membership=False))
REQUESTS = "add voter,remove voter,replace voter,reassign,transfer leader"
COMMON_AND_CHANGING = Task(
    options=Options(faults=frozenset(f"{COMMON_FAULTS},{REQUESTS}".split(",")))
)
KINDS = {"fixed": FIXED, "changing": CHANGING, "damaged disks": DAMAGED}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "task",
    [FIXED, CHANGING, COMMON, COMMON_AND_CHANGING],
    ids=["fixed voters", "changing voters", "common faults", "common faults, changing voters"],
)
def test_no_run_finds_anything(task: Task) -> None:
    tally = Tally()
    run_many(SEEDS, task, len(os.sched_getaffinity(0)), tally)
    assert tally.runs == len(SEEDS)
    failures = sorted(tally.failures, key=lambda failure: failure.seed)
    assert [f"{command(f.seed, task)}: {f.violated}: {f.what}" for f in failures] == []


@pytest.mark.parametrize(
    ("kind", "seed", "why"),
    [(kind, seed, why) for kind, seeds in REGRESSIONS.items() for seed, why in seeds.items()],
)
def test_a_seed_that_found_something_finds_nothing_any_more(kind: str, seed: int, why: str) -> None:
    failure = run_one(seed, KINDS[kind]).failure
    assert failure is None, why


@pytest.mark.parametrize("name", ["flapping", "link by link"])
@pytest.mark.parametrize("seed", range(1, 5))
def test_nothing_is_cut_after_all_faults_have_stopped(
    monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    world = World(seed, Options(membership=False, faults=frozenset({name})))
    cut, cut_us = world.env.network.cut, list[int]()

    def note(sources: Iterable[str], targets: Iterable[str], why: str) -> None:
        cut_us.append(world.env.scheduler.now_us)
        cut(sources, targets, why)

    monkeypatch.setattr(world.env.network, "cut", note)
    world.run()
    assert cut_us, "the fault was drawn"
    assert max(cut_us) <= world.settings.chaos_us


def test_a_run_is_not_well_before_all_operators_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(2526, CHANGING.options)
    busy = []

    def note(chaos: Chaos, copies: object) -> None:
        busy.append([operator.name for operator in chaos.operators if operator.is_busy])

    monkeypatch.setattr("simulation.world.start_from_stale_disk", note)
    world.run()
    assert world.chaos.operators, "operators have asked for something"
    assert busy == [[]]
