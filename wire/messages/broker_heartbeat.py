"""BrokerHeartbeat: a broker tells the controller that it lives (KIP-631).

Source: Apache Kafka 4.3, BrokerHeartbeatRequest.json and BrokerHeartbeatResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import BOOL, INT16, INT32, INT64, UUID_, Message, array, field


class BrokerHeartbeatRequest(Message, api_key=63, versions="0-2", flexible="0+"):
    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)
    current_metadata_offset: int = field(INT64)
    want_fence: bool = field(BOOL)
    want_shut_down: bool = field(BOOL)
    offline_log_dirs: tuple[UUID, ...] = array(UUID_, versions="1+", tag=0)
    cordoned_log_dirs: tuple[UUID, ...] | None = array(
        UUID_, versions="2+", nullable="2+", tag=1, default=None
    )


class BrokerHeartbeatResponse(Message, api_key=63, versions="0-2", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    is_caught_up: bool = field(BOOL)
    is_fenced: bool = field(BOOL, default=True)
    should_shut_down: bool = field(BOOL)
