"""Every command says which version it is, and of which commit."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import quorumd
from quorumd import version
from quorumd.cli.main import cli as quorumctl
from quorumd.pipeline.cli import cli as quorumd_pipeline
from quorumd.server.main import cli as quorumd_daemon

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with quorumd/version.py in it, as far as that module can see."""
    package = tmp_path / "quorumd"
    package.mkdir()
    monkeypatch.setattr(version, "__file__", str(package / "version.py"))
    return tmp_path


@pytest.mark.parametrize(
    ("command", "name"),
    [(quorumd_daemon, "quorumd"), (quorumctl, "quorumctl"), (quorumd_pipeline, "quorumd-pipeline")],
)
def test_every_command_names_version_form_and_commit(
    tree: Path, command: click.Command, name: str
) -> None:
    (tree / "quorumd" / version.REVISION_FILE).write_text(f"{COMMIT}\n")
    result = CliRunner().invoke(command, ["--version"])
    assert result.exit_code == 0
    assert (
        result.output
        == f"{name}, version {quorumd.__version__} ({version.form()}, commit {COMMIT})\n"
    )


@pytest.mark.live
def test_a_checkout_names_the_commit_of_git_and_whether_files_differ(tree: Path) -> None:
    git = _git(tree)
    git("init", "--quiet")
    git(
        "-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "--allow-empty", "-m", "x"
    )
    git("tag", "v9")
    commit = git("rev-parse", "HEAD")
    assert version.revision() == commit
    (tree / "file").write_text("")
    git("add", "file")
    assert version.revision() == f"{commit}-dirty"


@pytest.mark.live
def test_a_package_that_lies_somewhere_in_a_foreign_checkout_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _git(tmp_path)("init", "--quiet")
    monkeypatch.setattr(version, "__file__", str(tmp_path / "site/quorumd/version.py"))
    assert version.revision() == version.UNKNOWN


@pytest.mark.live
def test_a_checkout_that_git_refuses_has_no_commit(tree: Path) -> None:
    (tree / ".git").write_text("gitdir: /nowhere\n")
    assert version.revision() == version.UNKNOWN


def _git(folder: Path) -> Callable[..., str]:
    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    return git
