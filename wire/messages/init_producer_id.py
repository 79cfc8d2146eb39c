"""InitProducerId: an id for an idempotent producer (KIP-98, 360).

Source: Apache Kafka 4.4, InitProducerIdRequest.json and InitProducerIdResponse.json.
"""

from __future__ import annotations

from quorumd.wire.schema import INT16, INT32, INT64, STRING, Message, field


class InitProducerIdRequest(Message, api_key=22, versions="0-5", flexible="2+"):
    transactional_id: str | None = field(STRING, nullable="0+")
    transaction_timeout_ms: int = field(INT32)
    producer_id: int = field(INT64, versions="3+", default=-1)
    producer_epoch: int = field(INT16, versions="3+", default=-1)


class InitProducerIdResponse(Message, api_key=22, versions="0-5", flexible="2+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    producer_id: int = field(INT64, default=-1)
    producer_epoch: int = field(INT16)
