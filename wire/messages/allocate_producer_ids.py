"""AllocateProducerIds: a broker asks the controller for a block of producer ids (KIP-730).

Source: Apache Kafka 4.3, AllocateProducerIdsRequest.json and AllocateProducerIdsResponse.json.
"""

from __future__ import annotations

from quorumd.wire.schema import INT16, INT32, INT64, Message, field


class AllocateProducerIdsRequest(Message, api_key=67, versions="0", flexible="0+"):
    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)


class AllocateProducerIdsResponse(Message, api_key=67, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    producer_id_start: int = field(INT64)
    producer_id_len: int = field(INT32)
