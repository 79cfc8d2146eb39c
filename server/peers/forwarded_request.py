"""A client's request on its way to the leader: the bytes of both directions.

Body and version stay those of the client. The headers are this node's towards the leader, and the client's
own towards the client.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumd.server.net.inbound_request import InboundRequest
from quorumd.wire.errors import UnsupportedVersion
from quorumd.wire.headers import encode_request_header, encode_response_header


class ForwardedRequest:
    """One request; `Outbound.forward` decides whether it is sent, and what happens if it fails."""

    def __init__(
        self,
        request: InboundRequest,
        client_id: str,
        reshape: Callable[[bytes, int], bytes] | None,
    ) -> None:
        """`reshape` makes the body of the client's response from the leader's frame and the place of the
        body there; without it the body stays as it is."""
        self._request = request
        # Now: a request that waits for its response loses its own frame.
        self._body = request.frame[request.body_at :]
        self._client_id = client_id
        self._reshape = reshape
        self.is_sent = False
        """The leader may have done what was asked."""

    def frame(self, version: int, correlation_id: int) -> bytes:
        """The request for the leader. Raises UnsupportedVersion if it does not know the client's version."""
        request = self._request
        if version != request.api_version:
            raise UnsupportedVersion(f"the leader does not know version {request.api_version}")
        self.is_sent = True
        header = encode_request_header(request.api_key, version, correlation_id, self._client_id)
        size = len(header) + len(self._body)
        return b"".join((size.to_bytes(4, "big"), header, self._body))

    def respond(self, version: int, frame: bytes, at: int) -> None:
        """The leader has responded with this frame, whose body begins at `at`."""
        request = self._request
        header = encode_response_header(request.api_key, version, request.correlation_id)
        body = memoryview(frame)[at:] if self._reshape is None else self._reshape(frame, at)
        request.respond(((len(header) + len(body)).to_bytes(4, "big") + header, body))
