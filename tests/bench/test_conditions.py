"""The work of `bench.run_conditions`: every batch of every case is appended."""

from __future__ import annotations

import pytest

from bench.run_conditions import CASES, work


@pytest.mark.parametrize("case", CASES)
def test_every_batch_of_a_case_is_appended(case: str) -> None:
    work(case, records=3, batches=5)
