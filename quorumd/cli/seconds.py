"""Numbers of seconds among the options."""

from __future__ import annotations

import math
from typing import Any

import click


class Seconds(click.FloatRange):
    """A range without nan and inf, which click takes for numbers of any range."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return found
