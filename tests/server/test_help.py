"""`quorumd --help`: each command has a whole sentence, and what is no number is told as that."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from quorumd.server.main import cli

GROUPS = {
    command.name: command for command in cli.commands.values() if isinstance(command, click.Group)
}


@pytest.mark.parametrize("group", [(), *((name,) for name in GROUPS)])
def test_no_command_is_described_by_half_a_sentence(group: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, [*group, "--help"])
    assert done.exit_code == 0
    described = done.output.partition("\nCommands:\n")[2].splitlines()
    assert len(described) == len(GROUPS[group[0]].commands if group else cli.commands)
    assert all(line.endswith(".") and not line.endswith("...") for line in described)


@pytest.mark.parametrize("option", ["--id", "--days"])
def test_what_is_no_number_is_told_so(option: str) -> None:
    done = CliRunner().invoke(cli, ["certs", "node", option, "x"])
    assert done.exit_code == 2
    assert f"Invalid value for '{option}': 'x' is not a valid integer.\n" in done.output
