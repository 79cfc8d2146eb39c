"""The pauses between retries."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quorumd.client.timing import RetryBackoff

FORKING = """
import os
from quorumd.client.timing import RetryBackoff
for _ in range(3):
    if not os.fork():
        print(RetryBackoff(1, 1 << 40).next_s(), flush=True)
        os._exit(0)
    os.wait()
"""


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_success() -> None:
    backoff = RetryBackoff(20, 100)
    for span_ms in (20, 40, 80, 100, 100):
        assert span_ms / 2000 <= backoff.next_s() <= span_ms / 1000
    backoff.reset()
    assert backoff.next_s() <= 0.02


@pytest.mark.live
def test_processes_that_were_forked_do_not_come_back_at_the_same_moment() -> None:
    command = [sys.executable, "-c", FORKING]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert len(set(run.stdout.split())) == 3
