"""A job scheduler for several hosts: one of them leads and runs the jobs; when it dies, another one does.

    python examples/job_scheduler.py 10.0.0.1:9093,10.0.0.2:9093 host-1
    quorumctl put scheduler/jobs/report '{"every_s": 60, "command": ["make", "report"]}'
    quorumctl watch --prefix scheduler/

A job is due once in each slot of `every_s` seconds of the wall clock. The leader writes that it runs it below
`scheduler/runs/`, and when it is done again. Both are transactions: a leader that was replaced, and does not
know it yet, cannot write over the run of its successor. A successor runs again what its predecessor has begun
and not finished. What a job itself writes elsewhere, it fences with JOB_TOKEN, which grows from one leader to
the next.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import NamedTuple

from quorumd import LockLost, QuorumError
from quorumd.sync import Election, KeyValueView, QuorumClient, Transaction

PREFIX = b"scheduler/"
JOBS = PREFIX + b"jobs/"
RUNS = PREFIX + b"runs/"
TTL_S = 2.0
LOOK_EVERY_S = 0.1


class Job(NamedTuple):
    """A command to run once in so many seconds."""

    every_s: float
    command: list[str]


class Run(NamedTuple):
    """A job's newest run: in which slot, under which leader."""

    slot: int = -1
    token: int = -1
    host: str = ""
    is_done: bool = False

    def is_due(self, slot: int, token: int) -> bool:
        """Is there something to do for the leader with this token?"""
        is_left_over = self.slot == slot and not self.is_done and self.token < token
        return self.slot < slot or is_left_over


def job_in(value: bytes) -> Job:
    """Raises an error of any kind if there is none in it."""
    found = json.loads(value)
    job = Job(float(found["every_s"]), [str(word) for word in found["command"]])
    if not job.every_s >= LOOK_EVERY_S or not job.command:
        raise ValueError(f"every_s is at least {LOOK_EVERY_S}, and there is a command")
    return job


def run_in(value: bytes | None) -> Run:
    """The run that is written there. Anything else counts as none: the job runs, and writes over it."""
    try:
        run = Run(**json.loads(value or b"{}"))
        return run._replace(slot=int(run.slot), token=int(run.token))
    except Exception:  # as for jobs
        return Run()


def write(t: Transaction, key: bytes, run: Run) -> bool:
    """Writes the run and returns True, unless a later leader has written one, or it was begun already."""
    last = run_in(t.get(key))
    is_next = (
        last == run._replace(is_done=False) if run.is_done else last.is_due(run.slot, run.token)
    )
    if last.token > run.token or not is_next:
        return False
    t.put(key, json.dumps(run._asdict()).encode())
    return True


def lead(view: KeyValueView, election: Election, host: str) -> None:
    """Runs jobs until the leadership is lost."""
    skipped: set[int] = set()
    while not election.lost.is_set():
        for key, entry in view.items(JOBS):
            name = key.removeprefix(JOBS)
            try:
                job = job_in(entry.value)
            except Exception as error:  # anybody may have put anything there: others go on
                if entry.offset not in skipped:
                    skipped.add(entry.offset)
                    print(f"{name.decode(errors='replace')} is skipped: {error!r}", flush=True)
                continue
            run = Run(int(time.time() // job.every_s), election.token, host)
            last = view.get(RUNS + name)
            # A look costs nothing; a transaction is an append, even one that only reads.
            if run_in(last and last.value).is_due(run.slot, run.token):
                run_job(view, RUNS + name, job, run)
        time.sleep(LOOK_EVERY_S)


def run_job(view: KeyValueView, key: bytes, job: Job, run: Run) -> None:
    if not view.transact(lambda t: write(t, key, run)):
        return
    environ = {**os.environ, "JOB_SLOT": str(run.slot), "JOB_TOKEN": str(run.token)}
    try:
        subprocess.run(job.command, env=environ, check=False)
    except (OSError, ValueError) as error:
        print(f"{job.command[0]} cannot be run: {error!r}", flush=True)
    view.transact(lambda t: write(t, key, run._replace(is_done=True)))


def main(servers: str, host: str) -> None:
    with QuorumClient(servers) as client, KeyValueView(client, prefix=PREFIX) as view:
        while True:
            try:
                with Election(client, "scheduler", ttl=TTL_S, value=host) as election:
                    print(f"{host} leads, token {election.token}", flush=True)
                    lead(view, election, host)
            except LockLost:
                print(f"{host} leads no more", flush=True)
            except QuorumError as error:
                print(f"{host} tries again: {error}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print("usage: job_scheduler.py HOST:PORT,... NAME-OF-THIS-HOST", file=sys.stderr)
        sys.exit(2)
    # A `with` block gives back what it has: the others need not wait until its time is over.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
