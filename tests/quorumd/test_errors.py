"""What the client's errors say."""

from __future__ import annotations

import pytest

from quorumd import AppendFailed, QuorumUnavailable


@pytest.mark.parametrize(
    ("count", "acknowledged", "unknown"),
    [
        (1, "1 record before that is acknowledged", "1 record was sent"),
        (2, "2 records before that are acknowledged", "2 records were sent"),
    ],
)
def test_one_record_is_no_plural(count: int, acknowledged: str, unknown: str) -> None:
    error = AppendFailed("no leader", acknowledged_count=count, last_offset=7, unknown_count=count)
    assert acknowledged in str(error)
    assert unknown in str(error)


def test_a_millisecond_that_has_passed_already_is_not_told() -> None:
    assert "could not wait within 2 s" in str(QuorumUnavailable("wait", 1_999, {}))
