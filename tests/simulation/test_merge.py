"""Seeds that several hosts have run make one report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from simulation.__main__ import cli
from simulation.merge import cli as merge

pytestmark = pytest.mark.sim


def run_shard(folder: Path, shard: str, *options: str) -> Path:
    arguments = ["--seeds", "1..7", "--jobs", "1", "--steps", "300", "--shard", shard, *options]
    result = CliRunner().invoke(cli, [*arguments, "--output", "json"])
    assert result.exit_code in (0, 1), result.output
    path = folder / f"shard-{shard.replace('/', '-of-')}{''.join(options)}.json"
    path.write_text(result.stdout)
    return path


def merged(*paths: Path) -> Result:
    return CliRunner().invoke(merge, [*map(str, paths)])


def without_times(text: str) -> str:
    text = re.sub(r"[\d,]+ events/s", "", text)
    return re.sub(r" in [\d.,]+ s", "", text)


def test_the_shards_of_a_run_are_that_run(tmp_path: Path) -> None:
    shards = [run_shard(tmp_path, f"{number}/3") for number in (1, 2, 3)]
    assert [json.loads(path.read_text())["runs"] for path in shards] == [3, 2, 2]
    result = merged(*shards)
    assert result.exit_code == 0, result.output
    whole = CliRunner().invoke(cli, ["--seeds", "1..7", "--jobs", "1", "--steps", "300"])
    assert without_times(result.stdout) == without_times(whole.stdout)


def test_failures_keep_their_commands(tmp_path: Path) -> None:
    late = "--timeout=0.000001"
    result = merged(run_shard(tmp_path, "1/2", late), run_shard(tmp_path, "2/2", late))
    assert result.exit_code == 1
    assert "7 violate: the run ends" in result.stdout
    assert "-m simulation --seed 3 --steps 300 --timeout 1e-06" in result.stdout


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    result = merged(run_shard(tmp_path, "1/3"), run_shard(tmp_path, "3/3"))
    assert result.exit_code == 1
    assert "2 seeds are missing" in result.output


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    first = run_shard(tmp_path, "1/2")
    other = run_shard(tmp_path, "2/2", "--fixed-voters")
    text = tmp_path / "text"
    text.write_text("7 seeds")
    for paths, said in (
        ((first, first), "has seeds that another file has, too"),
        ((first, other), "with different options"),
        ((text,), "is no report of a shard"),
    ):
        result = merged(*paths)
        assert result.exit_code == 2
        assert said in result.output.replace("\n", " ")


@pytest.mark.parametrize("shard", ["3", "0/2", "3/2", "a/b", "9/9"])
def test_a_shard_that_is_none_is_refused(shard: str) -> None:
    result = CliRunner().invoke(cli, ["--seeds", "1..7", "--shard", shard])
    assert result.exit_code == 2
