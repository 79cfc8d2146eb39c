"""`quorumd certs check`: what would be refused, before it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quorumd.server.main import cli
from tests.server.test_certificate_checks import TLS, Files
from tests.support.config_files import writer_into
from tests.support.odd_certificates import DAY, HOUR, Authority, now


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def check(files: Files, extra: str = TLS) -> Result:
    path = writer_into(files.folder)(extra=extra)
    return CliRunner().invoke(cli, ["certs", "check", "--config", str(path)])


def test_what_is_sound_is_shown_with_its_end(files: Files) -> None:
    done = check(files, TLS + "quorum.node.principals: User:CN=quorumd-{id}\n")
    assert done.exit_code == 0, done.output
    first, own, ca = done.output.splitlines()
    assert first == "CONTROLLER: nothing would be refused"
    assert own.startswith("  own  CN=quorumd-1  ends 20")
    assert own.endswith("UTC, in 29 days")
    assert ca.startswith("  ca   CN=quorumd test CA  ends 20")


def test_everything_that_would_be_refused_is_named_at_once(files: Files) -> None:
    end = now() - 2 * HOUR
    Authority("another").issue("x", ("db7",), begin=end - DAY, end=end).write(
        files.folder / "node.pem"
    )
    done = check(files)
    assert done.exit_code == 2
    assert "expired 2 h ago" in done.output
    assert "names db7, not db1" in done.output
    assert "does not hold the CA of this node's certificate" in done.output
    assert "controller.yaml:" in done.output


def test_what_is_dangerous_is_a_warning(files: Files) -> None:
    (files.folder / "node.pem").chmod(0o644)
    done = check(files)
    assert done.exit_code == 0
    assert "warning: ssl.keystore.location: everybody on this host may read" in done.output


def test_without_tls_there_is_nothing_to_check(files: Files) -> None:
    done = check(files, "")
    assert done.exit_code == 0
    assert done.output.startswith("nothing is TLS")
