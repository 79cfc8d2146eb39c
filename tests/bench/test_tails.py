"""What `bench.run_tails` does beside its loads, which test_readme runs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from bench.run_tails import Tails


def test_a_moment_in_which_nothing_was_acknowledged_has_a_rate_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one, loadgen would send as fast as it can, and report other figures."""

    def load(self: Tails, **options: object) -> dict[str, Any]:
        return {"requests_per_s": 0.0}

    monkeypatch.setattr(Tails, "_load", load)
    quorum: Any = None
    Tails(quorum, Path(), Namespace(rate=0.0, seconds=1.0)).find_rate()
    assert capsys.readouterr().out == "1 records/s are due\n"
