"""Limits of one connection: of the requests under way, and of the time that its end takes."""

from __future__ import annotations

from typing import Final

MAX_IN_FLIGHT: Final = 1_000
"""Requests that were dispatched and whose responses have not been sent."""
MAX_IN_FLIGHT_BYTES: Final = 16 << 20
"""Of these requests, and of the responses that are expected for them."""
ENDED_S: Final = 30.0
"""Time that a peer that sends nothing more may wait for its responses: it may be gone."""
LINGER_S: Final = 1.0
"""Time that a peer has to close a connection that has been closed here."""
OUT_BYTES_MAX: Final = 1 << 20
"""Of responses that are collected for one write; no request is taken meanwhile."""
UNREAD_BYTES_MAX: Final = 128 << 10
"""Of responses that the peer does not read: beyond it they count, and it is not read from either."""
