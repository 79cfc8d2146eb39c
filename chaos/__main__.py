"""`python -m chaos`: a quorum of real processes, real clients and faults, for hours, and a verdict."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random

import click

from chaos.faults import ALONE, FAULTS, Trouble, possible
from chaos.hosts import made_hosts
from chaos.load import LIBRARIES
from chaos.nodes import Nodes
from chaos.report import Story, render
from chaos.verdict import check_run

ROOT = Path(__file__).resolve().parents[1]
READY_S = 60.0
RECOVERY_S = 40.0
DRAIN_S = 60.0
FAULT_S = (2.0, 12.0)
QUIET_S = (1.0, 5.0)
SIGNS = ("Traceback (most recent call last)", "CRITICAL", " level=critical ")

_HELP = """Run a quorum of real processes through hours of faults, and check what its clients saw.

Five nodes, three of them voters at first. Clients of three libraries write and read all the time. Nodes are
killed, paused and stopped, links are cut, disks fill up or are lost, clocks jump, voters change. After each
round of faults the quorum has to recover. In the end the checkers of the simulator check the histories of the
clients, and `quorumd-pipeline audit` the replicas.

Cut links and full disks need root. The report is written to the folder, and its findings are printed.

\b
Examples:
  python -m chaos --hours 1
  python -m chaos --minutes 5 --seed 7 --faults kill,isolate,lost-disk

Exit codes: 0 nothing found, 1 findings, 2 wrong usage, 130 interrupted.
"""


def _to_time(
    context: click.Context, parameter: click.Parameter, value: float | None
) -> float | None:
    if value is not None and not value >= 0:
        raise click.BadParameter(f"{value:g} is no time")
    return value


@click.command(help=_HELP)
@click.option("--hours", type=float, callback=_to_time, default=1.0, show_default=True)
@click.option("--minutes", type=float, callback=_to_time, help="Instead of --hours.")
@click.option("--seed", type=int, help="Of the order of faults; drawn anew by default.")
@click.option("--nodes", "count", type=click.IntRange(3, 9), default=5, show_default=True)
@click.option("--faults", "only", metavar="LIST", help=f"Only these of: {', '.join(FAULTS)}.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where files, logs and the report go; a new temporary one by default.",
)
def main(
    hours: float,
    minutes: float | None,
    seed: int | None,
    count: int,
    only: str | None,
    folder: Path | None,
) -> None:
    chosen = list(FAULTS) if only is None else [name.strip() for name in only.split(",")]
    if unknown := sorted(set(chosen) - set(FAULTS)):
        raise click.UsageError(f"unknown: {', '.join(unknown)}. There are: {', '.join(FAULTS)}.")
    seconds = (hours * 60 if minutes is None else minutes) * 60
    seed = Random().randrange(1 << 32) if seed is None else seed
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="quorumd-chaos-"))
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise click.UsageError(f"{folder} is not empty: name another folder.")
    title = f"{seconds / 60:g} minutes of chaos, seed {seed}"
    click.echo(f"{title}; everything is in {folder}")
    # A terminal that is closed ends it in order, too, unless nohup has it go on.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        is_sound = Run(folder, seed, chosen).run(seconds, count, title)
    except KeyboardInterrupt:
        with suppress(OSError):  # The terminal may be gone.
            click.echo(f"interrupted; nothing was checked. The logs are in {folder}", err=True)
        raise SystemExit(130) from None
    raise SystemExit(0 if is_sound else 1)


class Run:
    """One run in a folder."""

    def __init__(self, folder: Path, seed: int, chosen: Sequence[str]) -> None:
        self._folder = folder
        self._draw = Random(seed)
        self._chosen = chosen
        self._story = Story()
        self._begin_ns = time.monotonic_ns()

    def run(self, seconds: float, count: int, title: str) -> bool:
        """Returns True if nothing was found."""
        with made_hosts(self._folder, count) as hosts, ExitStack() as stack:
            nodes = Nodes(hosts)
            stack.callback(nodes.close)
            nodes.create()
            self._wait_whole(nodes, READY_S)
            names = [name for name in self._chosen if name in possible(nodes)]
            for name in sorted(set(self._chosen) - set(names)):
                self._say(f"left out, since it can't be had here: {name}")
            with self._clients(nodes) as histories:
                deadline = time.monotonic() + seconds
                while time.monotonic() < deadline:
                    self._round(nodes, names)
            self._say("clients are done")
            self._wait_whole(nodes, RECOVERY_S)
            for node in nodes.ids:
                nodes.stop(node)
            self._look_at_ends(nodes)
            self._audit(nodes)
            verdict = check_run(histories, [nodes.storage(node) for node in nodes.ids])
            findings = [*self._story.findings, *verdict.violations]
            if findings:
                nodes.keep_files(nodes.ids)
            logs = [nodes.log(node) for node in nodes.ids]
        report = self._folder / "report.md"
        report.write_text(
            render(self._story, verdict, title=title, begin_ns=self._begin_ns, log_files=logs)
        )
        for finding in findings[:20]:
            click.echo(f"FOUND: {finding}")
        rounds = sum(self._story.faults.values())
        click.echo(
            f"{len(findings)} findings; {rounds} faults, {verdict.records:,} records; {report}"
        )
        return not findings

    def _round(self, nodes: Nodes, names: Sequence[str]) -> None:
        """One fault or two that overlap, and then everything has to be well again."""
        first = self._draw.choice(names)
        picked = [first]
        together = [name for name in names if name not in ALONE and name != first]
        if first not in ALONE and together and self._draw.random() < 0.4:
            picked.append(self._draw.choice(together))
        begun: list[Iterator[str]] = []
        for name in picked:
            fault = FAULTS[name](nodes, self._draw)
            described = next(fault, None)
            if described is not None:
                self._story.faults[name] += 1
                self._say(described)
                begun.append(fault)
            time.sleep(self._draw.uniform(*FAULT_S))
        for fault in begun:
            try:
                next(fault, None)
            except Trouble as trouble:
                self._find(str(trouble))
        self._say("whole again")
        self._wait_whole(nodes, RECOVERY_S)
        time.sleep(self._draw.uniform(*QUIET_S))

    def _wait_whole(self, nodes: Nodes, seconds: float) -> None:
        """A leader, and every node has what was in the log when all was well again."""
        begun_s = time.monotonic()
        target: int | None = None
        statuses: dict[int, dict[str, object]] = {}
        while time.monotonic() < begun_s + seconds:
            statuses = nodes.statuses()
            leaders = [each for each in statuses.values() if each["role"] == "leader"]
            if leaders and target is None:
                target = max(_number(each["log_end_offset"]) for each in statuses.values())
            marks = [_number(each["high_watermark"]) for each in statuses.values()]
            if target is not None and len(marks) == len(nodes.ids) and min(marks) >= target:
                return
            time.sleep(0.2)
        found = {
            node: f"{each['role']} in epoch {each['epoch']} with {each['high_watermark']}"
            f" of {each['log_end_offset']}"
            for node, each in statuses.items()
        }
        self._find(f"no recovery in {seconds:g} s; offset {target} was to be reached: {found}")

    @contextmanager
    def _clients(self, nodes: Nodes) -> Iterator[list[Path]]:
        """A writer and a reader of each library; gives the files that they write."""
        histories: list[Path] = []
        processes: list[subprocess.Popen[bytes]] = []
        with ExitStack() as stack:
            for library in LIBRARIES:
                for what in ("write", "read"):
                    name = f"{library}-{what}"
                    path = self._folder / f"{name}.jsonl"
                    path.touch()
                    histories.append(path)
                    log = stack.enter_context((self._folder / f"{name}.log").open("wb"))
                    process = subprocess.Popen(
                        [
                            sys.executable,
                            "-m",
                            "chaos.load",
                            what,
                            library,
                            name,
                            nodes.bootstrap,
                            path,
                        ],
                        cwd=ROOT,
                        env={**os.environ, "PYTHONWARNINGS": "ignore"},
                        stdin=subprocess.PIPE,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                    processes.append(process)
                    stack.callback(process.wait)  # behind the other: none is left at the end
                    stack.callback(process.kill)
            yield histories
            for process in processes:
                assert process.stdin is not None, "it is a pipe"
                process.stdin.close()
            for process, path in zip(processes, histories, strict=True):
                try:
                    code = process.wait(DRAIN_S)
                except subprocess.TimeoutExpired:
                    code = None
                if code != 0:
                    self._find(f"client {path.stem} ended with {code}: see {path.stem}.log")

    def _look_at_ends(self, nodes: Nodes) -> None:
        for ended in nodes.ended:
            at_s = ended.at_s - self._begin_ns / 1e9
            self._find(f"node {ended.node} ended with {ended.exit_code} after {at_s:.0f} s")
        for node in nodes.ids:
            with nodes.log(node).open(errors="replace") as log:
                for number, line in enumerate(log, 1):
                    if any(sign in line for sign in SIGNS):
                        self._find(f"{nodes.log(node)}:{number}: {line.strip()}")

    def _audit(self, nodes: Nodes) -> None:
        program = Path(sys.executable).with_name("quorumd-pipeline")
        command = [str(program), "audit", *(str(nodes.storage(node)) for node in nodes.ids)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        (self._folder / "audit.txt").write_text(done.stdout + done.stderr)
        if done.returncode:
            self._find(f"the audit ended with {done.returncode}: see audit.txt")

    def _say(self, line: str) -> None:
        at_s = (time.monotonic_ns() - self._begin_ns) / 1e9
        self._story.lines.append((at_s, line))
        click.echo(f"{at_s:8.1f} s  {line}")

    def _find(self, finding: str) -> None:
        self._story.findings.append(finding)
        self._say(f"FOUND: {finding}")


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


if __name__ == "__main__":
    main()
