"""The rules' fetch at a peer, as a call of its own: it is made for each response that comes."""

from __future__ import annotations

from typing import Final

from quorumd.raft.effects import Fetch, Peer
from quorumd.raft.types import Address
from quorumd.server.model.peer_calls import PeerCall

FETCH: Final = 1
FETCH_VERSION_MAX: Final = 18


class Fetching:
    """The sender of fetches: makes the requests, and gets their results."""

    def fetch_frame(self, request: Fetch, version: int, correlation_id: int) -> bytes:
        """A complete request. Raises UnsupportedVersion."""
        raise NotImplementedError

    def on_response(
        self,
        key: int,
        request_id: int,
        to: Peer,
        version: int,
        frame: bytes,
        at: int,
        address: Address,
        is_trusted: bool,
    ) -> bool | None:
        """A response to a request with this api key; see `PeerCall.responded`."""
        raise NotImplementedError

    def on_failure(self, request_id: int, reason: str, error: str | None) -> None:
        """See `PeerCall.failed`."""
        raise NotImplementedError


class FetchCall(PeerCall):
    """A fetch that the rules asked for; cheaper to make than functions that know which fetch it is."""

    __slots__ = ("_fetching", "_request", "_request_id", "_to")

    def __init__(
        self, fetching: Fetching, request: Fetch, request_id: int, to: Peer, timeout_ms: int
    ) -> None:
        super().__init__(FETCH, FETCH_VERSION_MAX, timeout_ms)
        self._fetching = fetching
        self._request = request
        self._request_id = request_id
        self._to = to

    def build(self, version: int, correlation_id: int) -> bytes:
        return self._fetching.fetch_frame(self._request, version, correlation_id)

    def responded(
        self, version: int, frame: bytes, at: int, address: Address, is_trusted: bool
    ) -> bool | None:
        request_id, to = self._request_id, self._to
        return self._fetching.on_response(
            FETCH, request_id, to, version, frame, at, address, is_trusted
        )

    def failed(self, reason: str, error: str | None) -> None:
        self._fetching.on_failure(self._request_id, reason, error)
