"""`python -m simulation.same` sees each fingerprint that differs from those of a commit, and only these."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from quorumd.raft import campaign_delays, leader_discovery, pre_vote
from quorumd.raft.core import Core
from quorumd.raft.roles import Unattached
from quorumd.wire import codec
from simulation import same

SEEDS = "1..2"


@pytest.fixture(scope="module")
def found() -> same.Fingerprints:
    return same.fingerprints(1, 2)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the fingerprints of HEAD are kept."""
    monkeypatch.setattr(same, "CACHE", tmp_path)
    git = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(git, cwd=same.ROOT, check=True, capture_output=True, text=True).stdout
    return tmp_path / f"{commit.strip()}-1-2.json"


def compare() -> tuple[int, list[str]]:
    """Exit code and lines."""
    done = CliRunner().invoke(same.cli, ["--base", "HEAD", "--seeds", SEEDS])
    return done.exit_code, done.output.splitlines()


@pytest.mark.long
def test_equal_fingerprints_are_no_difference(found: same.Fingerprints, kept: Path) -> None:
    kept.write_text(json.dumps(found))
    assert compare() == (0, [f"{len(found)} fingerprints, 0 differ from HEAD"])


@pytest.mark.long
def test_a_run_a_message_and_a_scenario_that_differ_are_named(
    found: same.Fingerprints, kept: Path
) -> None:
    scenario = min(name for name in found if name.startswith("scenario "))
    before = {**found, "seed 2": "other events", "message GoneRequest 0": "abc"}
    del before["message VoteRequest 1"], before[scenario]
    kept.write_text(json.dumps(before))
    code, lines = compare()
    assert code == 1
    assert lines == [
        "message GoneRequest 0: abc before, gone now",
        f"message VoteRequest 1: not there before, {found['message VoteRequest 1']} now",
        f"{scenario}: not there before, {found[scenario]} now",
        f"seed 2: other events before, {found['seed 2']} now",
        f"{len(before) + 2} fingerprints, 4 differ from HEAD",
    ]


@pytest.mark.long
def test_each_message_whose_bytes_change_has_another_fingerprint(
    found: same.Fingerprints, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = {
        name: value
        for name, value in found.items()
        if name.startswith(("message ", "control record "))
    }
    assert dict(same._of_messages()) == messages
    monkeypatch.setattr(same, "encode", lambda *of: codec.encode(*of) + b"\0")
    changed = dict(same._of_messages())
    assert [name for name in messages if changed[name] == messages[name]] == []


@pytest.mark.long
@pytest.mark.pure
def test_a_rule_that_waits_a_millisecond_longer_changes_the_fingerprint_of_a_run(
    found: same.Fingerprints, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert same._of_seed(1) == ("seed 1", found["seed 1"])
    right = campaign_delays.campaign_soon

    def wrong(core: Core, state: Unattached) -> None:
        right(core, state)
        state.election_deadline_ms += 1

    monkeypatch.setattr(pre_vote, "campaign_soon", wrong)
    monkeypatch.setattr(leader_discovery, "campaign_soon", wrong)
    assert same._of_seed(1) != ("seed 1", found["seed 1"])
