"""Timeouts, and the pauses between retries."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

from quorumd.client.timing import Deadline, RetryBackoff, whole_ms

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


def test_when_the_time_is_up_nothing_is_left_of_it() -> None:
    deadline = Deadline(0)
    assert (deadline.remaining_ms(), deadline.remaining_s(), deadline.try_s()) == (0, 0.0, 0.0)
    assert deadline.has_passed
    later = Deadline(600_000)
    assert 500_000 < later.remaining_ms() <= 600_000
    assert not later.has_passed


@pytest.mark.parametrize(
    ("given", "ms"),
    [(5, 5), (2.5, 3), (0, 0), (-1, 0), (1 << 31, (1 << 31) - 1), (math.inf, (1 << 31) - 1)],
)
def test_a_timeout_is_what_a_request_can_have(given: float, ms: int) -> None:
    assert (whole_ms(given), type(whole_ms(given))) == (ms, int)


@pytest.mark.parametrize("given", ["5", None, math.nan, b"5"])
def test_a_timeout_that_is_no_number_is_refused(given: Any) -> None:
    """By NaN, no time would ever be up, and no pause between two tries be one."""
    with pytest.raises((TypeError, ValueError), match=r"a timeout is .*: give milliseconds"):
        whole_ms(given)


@pytest.mark.live
def test_processes_that_were_forked_do_not_come_back_at_the_same_moment() -> None:
    command = [sys.executable, "-c", FORKING]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert len(set(run.stdout.split())) == 3
