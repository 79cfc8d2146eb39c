"""`python -m simulation`: what it prints, how it ends, and what its runner and shrinker do."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from simulation import progress
from simulation.__main__ import cli
from simulation.cases import (
    MESSAGE_FAULTS,
    PARTITIONS,
    missing_cases,
    missing_pairs,
    possible_cases,
    possible_pairs,
)
from simulation.coverage import Coverage
from simulation.draw import draw_settings
from simulation.faults import ACTS, FAULTS, OPERATIONS
from simulation.faults.partitions import LEADER_FAILS, LONE_WITNESS
from simulation.observer import Observed
from simulation.options import Options
from simulation.progress import FAILURES_SHOWN_MAX
from simulation.report import command
from simulation.runner import (
    ENDS,
    NO_EXCEPTION,
    Run,
    Tally,
    Task,
    WorkerLost,
    run_many,
    run_one,
)
from simulation.settings import Settings
from simulation.shrink import Shrinker
from simulation.violation import Violation
from simulation.world import World

pytestmark = pytest.mark.sim

ROOT = Path(__file__).resolve().parents[2]
PLANTED_PROPERTY = "nobody is killed and paused"
PLANTED_KINDS = {"kill", "pause"}
EVERYTHING_SEED = 9
SOME_FAULTS = ("isolate one", "kill", "pause", "wall clock step")

OnEvent = Callable[[World], None]


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "simulation", *arguments]
    return subprocess.Popen(words, cwd=ROOT, text=True, stdout=subprocess.PIPE, **options)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.fixture
def on_event(monkeypatch: pytest.MonkeyPatch) -> Callable[[OnEvent], None]:
    """Have something called after every event of a process of a world."""
    make = World.__init__

    def install(act: OnEvent) -> None:
        def make_and_watch(world: World, *arguments: Any) -> None:
            make(world, *arguments)
            observe = world.env.observer.observe

            def observe_and_act(process: Observed, *, is_cut_short: bool = False) -> None:
                observe(process, is_cut_short=is_cut_short)
                act(world)

            vars(world.env.observer)["observe"] = observe_and_act

        monkeypatch.setattr(World, "__init__", make_and_watch)

    return install


def fail_after_both_kinds(world: World) -> None:
    if {planned.name for planned in world.begun} >= PLANTED_KINDS:
        raise Violation(PLANTED_PROPERTY, f"at offset 17 of epoch 4, after {len(world.begun)}")


def is_lone(settings: Settings) -> bool:
    return len(settings.sites) == 1 and not settings.is_dynamic


def lone_runs(task: Task) -> Iterator[Run]:
    """Runs of a lone voter, for they are fast; but not the first ones."""
    return (run_one(seed, task) for seed in range(100, 1000) if is_lone(draw_settings(seed)))


def first_failing(task: Task) -> Run:
    return next(r for r in lone_runs(task) if r.failure is not None and len(r.begun) > 4)


# --- one seed


def test_a_seed_gives_the_same_events_under_any_hash_seed() -> None:
    processes = [
        start("--seed", "5", "--output", "json", env={**os.environ, "PYTHONHASHSEED": hash_seed})
        for hash_seed in ("1", "2")
    ]
    one, other = (json.loads(process.communicate(timeout=60)[0]) for process in processes)
    assert one["digest"] == other["digest"]
    assert one["events"] > 100


def test_a_run_that_finds_nothing_tells_its_figures_and_ends_with_0() -> None:
    result = invoke("--seed", "5")
    assert result.exit_code == 0, result.output
    run = run_one(5, Task())
    assert "seed 5: nothing found" in result.output
    assert f"digest     {run.digest}" in result.output
    assert f"events     {run.steps:,} in" in result.output
    assert f"committed  {run.committed_records:,} records" in result.output
    assert "settings   voters=" in result.output
    assert "last events of" not in result.output


def test_trace_shows_the_last_events_also_on_success() -> None:
    assert "last events of node1" in invoke("--seed", "5", "--trace").output


def test_faults_are_chosen_in_any_spelling() -> None:
    digests = {
        json.loads(invoke("--seed", "5", "--faults", names, "--output", "json").output)["digest"]
        for names in ("power loss,ring", "Ring,POWER-LOSS", "power_loss, ring")
    }
    assert digests == {run_one(5, Task(options=Options(faults=("power loss", "ring")))).digest}


def test_no_faults_and_all_faults_can_be_asked_for() -> None:
    def faults(word: str) -> dict[str, int]:
        output = invoke("--seed", "5", "--faults", word, "--steps", "50", "--output", "json").output
        found: dict[str, int] = json.loads(output)["settings"]["faults"]
        return found

    assert faults("none") == {}
    needs_others = {LONE_WITNESS, LEADER_FAILS}
    assert set(faults("all")) | needs_others == set(ACTS)


def test_an_unknown_fault_is_refused_with_those_that_are_known() -> None:
    result = invoke("--seed", "5", "--faults", "kill,earthquake")
    assert result.exit_code == 2
    assert "earthquake" in result.output
    assert "power-loss-of-all" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--seed 1 --seeds 1..2",
        "--seeds 1..2 --only 3",
        "--seeds 1..2 --shrink",
        "--seeds 1..2 --trace",
        "--seeds 9..8",
        "--seeds one..two",
        "--seed 1 --only first",
        "--seed 1 --timeout 0",
        "--seed 1 --timeout nan",
        "--seed 1 --timeout 1e300",
        "--seed 1 --plant no-such-bug",
    ],
)
def test_wrong_usage_ends_with_2(arguments: str) -> None:
    assert invoke(*arguments.split()).exit_code == 2


def test_the_command_of_a_run_means_that_run() -> None:
    options = Options(faults=("kill", "power loss of all"), numbers=(7, 3), steps=99)
    for task in (
        Task(options=options, plant="granted vote leaves unsynced", timeout_s=7.5),
        Task(options=Options(faults=(), numbers=())),
        Task(options=Options(faults=tuple(ACTS), membership=False)),
        Task(),
    ):
        _, module, name, *arguments = shlex.split(command(5, task))
        assert (module, name) == ("-m", "simulation")
        found = cli.make_context("simulation", arguments).params
        assert found["seed"] == 5
        assert found["faults"] == task.options.faults
        assert found["fixed_voters"] == (not task.options.membership)
        assert sorted(found["numbers"] or ()) == sorted(task.options.numbers or ())
        assert found["steps"] == task.options.steps
        assert (found["plant"] and found["plant"].name) == task.plant
        assert found["timeout_s"] == task.timeout_s


# --- failures


def test_a_failure_tells_all_that_helps(on_event: Callable[[OnEvent], None]) -> None:
    on_event(fail_after_both_kinds)
    task = Task(options=Options(faults=SOME_FAULTS))
    run = first_failing(task)
    result = invoke("--seed", str(run.seed), "--faults", ",".join(SOME_FAULTS))
    assert result.exit_code == 1
    assert f"seed {run.seed} violates: {PLANTED_PROPERTY}" in result.output
    assert "at offset 17 of epoch 4" in result.output
    assert f"    {command(run.seed, task)}\n" in result.output
    assert "settings   voters=" in result.output
    for planned in run.begun:
        assert f"{planned.number:>4} {planned.at_us / 1e6:>11.6f}  {planned.name}" in result.output
    for host, events in run.last_events:
        assert f"last events of {host}" in result.output
        assert events[-1] in result.output


def test_any_other_exception_is_a_failure_with_its_place(
    on_event: Callable[[OnEvent], None],
) -> None:
    def stumble(world: World) -> None:
        raise KeyError("a slip of ours")

    on_event(stumble)
    failure = run_one(5, Task()).failure
    assert failure is not None
    assert failure.violated == NO_EXCEPTION
    assert "KeyError: 'a slip of ours'" in failure.what
    assert "in stumble" in failure.what


def test_a_run_without_an_end_is_a_failure_that_tells_where_it_was(
    on_event: Callable[[OnEvent], None],
) -> None:
    def linger(world: World) -> None:
        while True:
            pass

    on_event(linger)
    before = signal.getsignal(signal.SIGPROF)
    failure = run_one(5, Task(timeout_s=0.2)).failure
    assert failure is not None
    assert failure.violated == ENDS
    assert "in linger" in failure.what
    assert signal.getsignal(signal.SIGPROF) is before


def test_ctrl_c_in_a_run_is_no_failure_of_it(on_event: Callable[[OnEvent], None]) -> None:
    on_event(lambda world: os.kill(os.getpid(), signal.SIGINT))
    assert invoke("--seed", "5").exit_code == 130


# --- many seeds


def test_many_seeds_on_two_processes_add_up() -> None:
    result = invoke("--seeds", "1..8", "--jobs", "2", "--steps", "300", "--output", "json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    task = Task(options=Options(steps=300))
    runs = [run_one(seed, task) for seed in range(1, 9)]
    assert told["is_complete"]
    assert told["runs"] == 8
    assert told["failures"] == []
    assert told["events"] == sum(run.steps for run in runs)
    assert sum(case["count"] for case in told["coverage"]) == sum(
        run.coverage.cases.total() for run in runs
    )


def test_the_summary_shows_each_fault_and_what_never_occurred() -> None:
    result = invoke("--seeds", "1..2", "--jobs", "1", "--faults", "kill", "--coverage")
    assert result.exit_code == 0, result.output
    rows = {line.split("  ")[0].strip(): line.split() for line in result.output.splitlines()}
    assert int(rows["kill"][1]) > 0
    assert rows["power loss of all"][-10] == "0"
    assert "never: loss, reset" in result.output
    assert "  never: loss, leader, Fetch response\n" in result.output
    assert "2 seeds (1..2), 0 failures" in result.output


def test_failing_seeds_are_collected_by_property(on_event: Callable[[OnEvent], None]) -> None:
    on_event(fail_after_both_kinds)
    faults = ("--faults", "kill,pause")
    result = invoke("--seeds", "1..12", "--jobs", "2", *faults, "--timeout", "60")
    assert result.exit_code == 1
    task = Task(options=Options(faults=("kill", "pause")), timeout_s=60.0)
    failing = [seed for seed in range(1, 13) if run_one(seed, task).failure is not None]
    assert len(failing) > 1
    assert f"{len(failing)} violate: {PLANTED_PROPERTY}\n" in result.output
    assert f"    seeds {' '.join(map(str, failing))}\n" in result.output
    assert command(failing[0], task) in result.output
    said = set(result.stderr.splitlines())
    assert len(said) == min(len(failing), FAILURES_SHOWN_MAX)
    assert said <= {f"seed {seed} violates: {PLANTED_PROPERTY}" for seed in failing}


def test_a_long_run_without_a_terminal_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--jobs", "2", "--faults", "none", "--seeds")
    assert invoke(*arguments, "1..1").stderr == ""
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    lines = invoke(*arguments, "1..2").stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"seeds {n} of 2" for n in (1, 2)]
    assert lines[-1].endswith(" seeds/s, 0 failed")


@pytest.mark.pure
def test_a_planted_bug_is_there_in_the_workers_and_gone_behind_it() -> None:
    result = invoke("--seeds", "1..2", "--jobs", "2", "--plant", "Granted vote leaves unsynced")
    assert result.exit_code == 1
    assert "2 violate: votes survive restarts" in result.output
    assert run_one(1, Task()).failure is None


def test_planted_bugs_are_listed_with_what_they_break() -> None:
    result = invoke("--plant", "list")
    assert result.exit_code == 0
    assert "granted-vote-leaves-unsynced  " in result.output
    assert "KIP-595" in result.output


def test_a_worker_that_dies_is_told_with_its_seeds(on_event: Callable[[OnEvent], None]) -> None:
    on_event(lambda world: os._exit(3))
    with pytest.raises(WorkerLost, match="one of these seeds: 41"):
        run_many(range(41, 42), Task(), 1, Tally())


def test_ctrl_c_ends_everything_at_once_and_prints_what_was_done() -> None:
    screen, terminal = pty.openpty()
    process = start(
        *("--seeds", "1..100000", "--jobs", "2"),
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(terminal)
    shown = b""
    while b"seeds/s" not in shown:
        shown += os.read(screen, 4096)
    process.send_signal(signal.SIGINT)
    # The end of the output is seen only once the workers, which hold it too, are gone.
    output, _ = process.communicate(timeout=10)
    os.close(screen)
    assert process.returncode == 130
    assert " of 100,000 seeds (1..100000), " in output


def test_ctrl_c_in_the_midst_of_a_fork_is_not_lost() -> None:
    program = (
        "import os, signal\n"
        "os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "from simulation.__main__ import main\n"
        "main()\n"
    )
    words = [sys.executable, "-c", program, "--seeds", "1..100000", "--jobs", "2"]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 130
    assert b" of 100,000 seeds (1..100000), " in ended.stdout


# --- shrinking


def test_shrinking_leaves_just_what_the_failure_needs(on_event: Callable[[OnEvent], None]) -> None:
    on_event(fail_after_both_kinds)
    task = Task(options=Options(faults=SOME_FAULTS))
    run = first_failing(task)
    shrinker = Shrinker(run, task)
    shrinker.shrink()
    assert sorted(planned.name for planned in shrinker.run.begun) == sorted(PLANTED_KINDS)
    options = shrinker.task.options
    assert options.steps is not None
    assert options.steps <= shrinker.run.steps
    fewer = replace(shrinker.task, options=replace(options, steps=options.steps - 1))
    tried = run_one(run.seed, fewer)
    assert tried.failure is None or tried.steps > shrinker.run.steps
    again = run_one(run.seed, shrinker.task)
    assert again.failure == shrinker.run.failure
    assert again.digest == shrinker.run.digest


def test_shrinking_keeps_to_the_property(on_event: Callable[[OnEvent], None]) -> None:
    def fail_in_two_ways(world: World) -> None:
        fail_after_both_kinds(world)
        if (
            any(planned.name == "kill" for planned in world.begun)
            and world.env.scheduler.steps > 200
        ):
            raise Violation("another property", "a kill alone is not what is looked for")

    on_event(fail_in_two_ways)
    task = Task(options=Options(faults=("kill", "pause")))
    runs = lone_runs(task)
    run = next(r for r in runs if r.failure and r.failure.violated == PLANTED_PROPERTY)
    shrinker = Shrinker(run, task)
    shrinker.shrink()
    assert shrinker.run.failure is not None
    assert shrinker.run.failure.violated == PLANTED_PROPERTY
    assert sorted(planned.name for planned in shrinker.run.begun) == sorted(PLANTED_KINDS)


def test_shrink_prints_the_smallest_command_and_its_report(
    on_event: Callable[[OnEvent], None],
) -> None:
    on_event(fail_after_both_kinds)
    run = first_failing(Task(options=Options(faults=("kill", "pause"))))
    result = invoke("--seed", str(run.seed), "--faults", "kill,pause", "--shrink")
    assert result.exit_code == 1
    assert "runs tried; 2 faults instead of " in result.output
    printed = next(line for line in result.output.splitlines() if "-m simulation" in line)
    assert "--only " in printed
    assert "--steps " in printed
    assert f"violates: {PLANTED_PROPERTY}" in invoke(*shlex.split(printed)[3:]).output


# --- cases


def test_the_cases_know_the_faults() -> None:
    assert {*MESSAGE_FAULTS, *PARTITIONS} <= set(FAULTS)
    assert {fault for fault, _, _ in possible_cases()} == set(ACTS) - {"move"}
    assert {fault for _, fault in possible_pairs()} == set(FAULTS)
    assert {operation for operation, _ in possible_pairs()} == set(OPERATIONS) - {"move"}


def test_a_case_that_has_occurred_is_not_missing() -> None:
    coverage = Coverage()
    assert missing_cases(coverage) == list(possible_cases())
    case = ("kill", "leader", "Fetch")
    coverage.count(*case)
    assert case not in missing_cases(coverage)
    assert len(missing_cases(coverage)) == len(possible_cases()) - 1
    coverage.count("add voter", "observer", "DUPLICATE_VOTER")
    assert len(missing_cases(coverage)) == len(possible_cases()) - 2


def test_a_fault_during_an_operation_is_counted() -> None:
    coverage = run_one(EVERYTHING_SEED, Task(options=Options(faults=tuple(ACTS)))).coverage
    assert coverage.pairs
    assert set(coverage.pairs) <= set(possible_pairs())
    assert set(missing_pairs(coverage)) == set(possible_pairs()) - set(coverage.pairs)
