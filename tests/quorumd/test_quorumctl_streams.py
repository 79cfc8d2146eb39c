"""quorumctl whose standard streams are closed, or have another encoding than UTF-8."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

import pytest

from tests.quorumd.conftest import Done, QuorumThread
from tests.quorumd.running import COMMAND

pytestmark = pytest.mark.live

Run = Callable[..., Done]
TEXT = '\u00e9 \u4e2d \U0001f600 \\ "'


@pytest.mark.parametrize("closing", [">&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("put a b", 0),
        ("get a", 0),
        ("get b", 1),
        ("lock a -- sh -c 'exit 7'", 7),
        ("tail --follow --max-records 1", 0),
    ],
)
def test_closed_streams_change_no_exit_code(
    quorum: QuorumThread, quorumctl: Run, words: str, code: int, closing: str
) -> None:
    quorumctl("put", "a", "b")
    assert subprocess.run(["sh", "-c", f"{COMMAND} {words} {closing}"]).returncode == code


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_json_in_any_encoding(quorum: QuorumThread, quorumctl: Run, encoding: str) -> None:
    quorumctl("put", "a", TEXT)
    printed = subprocess.check_output(
        [str(COMMAND), "get", "a", "-o", "json"], env={**os.environ, "PYTHONIOENCODING": encoding}
    )
    assert json.loads(printed.decode(encoding))["value"] == TEXT
