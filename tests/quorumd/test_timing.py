"""The pauses between retries."""

from __future__ import annotations

from quorumd.client.timing import RetryBackoff


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_success() -> None:
    backoff = RetryBackoff(20, 100)
    for span_ms in (20, 40, 80, 100, 100):
        assert span_ms / 2000 <= backoff.next_s() <= span_ms / 1000
    backoff.reset()
    assert backoff.next_s() <= 0.02
