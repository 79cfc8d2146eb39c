"""Appends are linearizable: each takes effect at one moment between its call and its response.

The log itself is the only order in which they can have taken effect, so a history is linearizable if
moments can be found that ascend along the log: the earliest possible one for each append in turn is the
best choice. An append without a response may take effect at any time after its call, or never. Source:
Herlihy and Wing, Linearizability, 1990, section 2; the search of Wing and Gong is not needed where one
operation's response (its offset) gives its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulation.history.appends import Append
from simulation.history.replica import Batch
from simulation.violation import Violation

NAME = "appends are linearizable"


def check_linearizable(appends: Sequence[Append], committed: Sequence[Batch]) -> None:
    """Raise Violation unless the history can be explained by the committed log."""
    by_identity = {append.identity: append for append in appends}
    moment_us, latest = 0, None
    for batch in committed:
        append = by_identity.get(batch.identity)
        if append is None:
            continue
        if append.invoked_us > moment_us:
            moment_us, latest = append.invoked_us, append
        if append.acknowledged_us is not None and append.acknowledged_us < moment_us:
            assert latest is not None, "an append has moved the moment"
            raise Violation(
                NAME,
                f"{append.client}'s append at {batch} was acknowledged at {append.acknowledged_us} µs,"
                f" but is behind {latest.client}'s, which was only called at {latest.invoked_us} µs",
            )
