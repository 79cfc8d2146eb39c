"""Envelope: a broker passes a client's request on to the controller (KIP-590).

Source: Apache Kafka 4.3, EnvelopeRequest.json and EnvelopeResponse.json.
"""

from __future__ import annotations

from quorumd.wire.schema import BYTES, INT16, Message, field


class EnvelopeRequest(Message, api_key=58, versions="0", flexible="0+"):
    request_data: bytes = field(BYTES)
    request_principal: bytes | None = field(BYTES, nullable="0+")
    client_host_address: bytes = field(BYTES)


class EnvelopeResponse(Message, api_key=58, versions="0", flexible="0+"):
    response_data: bytes | None = field(BYTES, nullable="0+", default=None)
    error_code: int = field(INT16)
