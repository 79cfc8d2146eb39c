"""Compares runs before and after a change: events, messages and files, byte for byte.

`python -m simulation.same --base COMMIT` compares the working tree with a commit. What is compared is
printed without `--base`, as JSON: for each seed the digest of its events (bytes of messages included)
and those of its disks; for every message that is declared, the bytes of drawn samples in each version;
the texts of the scenarios. A commit's own code makes its fingerprints, in a work tree of its own, and
they are kept in `.cache/same`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast
from uuid import UUID

import click
from rich.progress import track

from quorumd.wire import control_records
from quorumd.wire.codec import encode
from quorumd.wire.errors import MalformedMessage
from quorumd.wire.registry import APIS
from quorumd.wire.schema import FieldSpec, Kind, Message, Struct
from simulation.runner import Task, run_one

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "same"
SAMPLES = 8
SHOWN_MAX = 20
_INTEGER_BITS = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}

S = TypeVar("S", bound=Struct)
Fingerprints = dict[str, str]


def fingerprints(first: int, last: int) -> Fingerprints:
    """All of them, by name; seeds from `first` to `last`, both included."""
    found = dict(_of_scenarios()) | dict(_of_messages())
    seeds = range(first, last + 1)
    with ProcessPoolExecutor() as executor:
        runs = executor.map(_of_seed, seeds, chunksize=4)
        found |= track(runs, "seeds", len(seeds), disable=not sys.stderr.isatty())
    return found


def _of_seed(seed: int) -> tuple[str, str]:
    run = run_one(seed, Task())
    assert run.failure is None, f"seed {seed} fails: {run.failure}"
    return f"seed {seed}", " ".join((run.digest, *run.disk_digests))


def _of_scenarios() -> Iterator[tuple[str, str]]:
    """Texts of what happens in them, kept by their test."""
    for path in sorted((ROOT / "tests" / "scenarios").glob("*.txt")):
        yield f"scenario {path.stem}", blake2b(path.read_bytes(), digest_size=16).hexdigest()


# -- messages


def _of_messages() -> Iterator[tuple[str, str]]:
    for spec in APIS.values():
        for version in range(spec.min_version, spec.max_version + 1):
            for cls in (spec.request, spec.response):
                yield f"message {cls.__name__} {version}", _sampled(cls, version)
    for name, value in sorted(vars(control_records).items()):
        if isinstance(value, type) and issubclass(value, Message) and value is not Message:
            yield f"control record {name} 0", _sampled(value, 0)


def _sampled(cls: type[Message], version: int) -> str:
    random = Random(f"{cls.__name__}/{version}")
    hashed = blake2b(digest_size=16)
    for _ in range(SAMPLES):
        try:
            hashed.update(encode(_drawn(cls, version, random), version))
        except MalformedMessage:
            hashed.update(b"refused")
    return hashed.hexdigest()


def _drawn(cls: type[S], version: int, random: Random) -> S:
    """One with every field drawn that this version has."""
    fields: dict[str, Any] = {
        spec.name: _drawn_field(spec, version, random)
        for spec in cls.wire_spec.fields
        if version in spec.versions
    }
    return cast("S", cast("Any", cls)(**fields))


def _drawn_field(spec: FieldSpec, version: int, random: Random) -> object:
    if version in spec.nullable and random.random() < 0.2:
        return None
    if spec.is_array:
        return tuple(_drawn_value(spec, version, random) for _ in range(random.randrange(4)))
    return _drawn_value(spec, version, random)


def _drawn_value(spec: FieldSpec, version: int, random: Random) -> object:
    of = spec.of
    if not isinstance(of, Kind):
        return _drawn(of, version, random)
    if of is Kind.BOOL:
        return random.random() < 0.5
    if of is Kind.UINT16:
        return random.randrange(2**16)
    if of is Kind.UUID:
        return UUID(int=random.getrandbits(128))
    if of is Kind.STRING:
        return "x" * random.choice([0, 1, 20, 130, 300])
    if of is Kind.BYTES:
        return random.randbytes(random.choice([0, 1, 20, 130, 300]))
    half = 1 << (_INTEGER_BITS[of] - 1)
    return random.randrange(-half, half)


# -- comparing


def of_commit(commit: str, first: int, last: int) -> Fingerprints:
    """Fingerprints of a commit, made by its own code unless they are kept."""
    git = partial(subprocess.run, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    full = git(["git", "rev-parse", "--verify", f"{commit}^{{commit}}"]).stdout.strip()
    kept = CACHE / f"{full}-{first}-{last}.json"
    if not kept.exists():
        tree = CACHE / full
        if not tree.exists():
            git(["git", "worktree", "add", "--detach", str(tree), full])
        command = [sys.executable, "-m", "simulation.same", "--seeds", f"{first}..{last}"]
        made = subprocess.run(command, cwd=tree, check=True, stdout=subprocess.PIPE).stdout
        kept.write_bytes(made)
        git(["git", "worktree", "remove", "--force", str(tree)])
    return cast("Fingerprints", json.loads(kept.read_text()))


def _has_same_simulator(commit: str) -> bool:
    """False if a commit has them from a simulator of their own, before there was simulation/scenario.py:
    what happens is the same there, but not when."""
    git = ["git", "cat-file", "-e", f"{commit}:simulation/scenario.py"]
    return subprocess.run(git, cwd=ROOT, stderr=subprocess.DEVNULL).returncode == 0


def _without_scenarios(prints: Fingerprints) -> Fingerprints:
    return {name: value for name, value in prints.items() if not name.startswith("scenario ")}


@click.command(help=__doc__)
@click.option("--base", metavar="COMMIT", help="Compare with this commit.")
@click.option("--seeds", default="1..1000", show_default=True, metavar="A..B")
def cli(base: str | None, seeds: str) -> None:
    """Prints JSON, or what differs; exits with 1 if something does."""
    first, _, last = seeds.partition("..")
    now = fingerprints(int(first), int(last))
    if base is None:
        click.echo(json.dumps(now, indent=0))
        return
    before = of_commit(base, int(first), int(last))
    if not _has_same_simulator(base):
        click.echo(f"scenarios are not compared: another simulator has made those of {base}")
        before, now = _without_scenarios(before), _without_scenarios(now)
    names = sorted(before.keys() | now.keys())
    different = [name for name in names if before.get(name) != now.get(name)]
    for name in different[:SHOWN_MAX]:
        click.echo(f"{name}: {before.get(name, 'not there')} before, {now.get(name, 'gone')} now")
    click.echo(f"{len(names)} fingerprints, {len(different)} differ from {base}")
    raise SystemExit(1 if different else 0)


if __name__ == "__main__":
    cli(prog_name="python -m simulation.same")
