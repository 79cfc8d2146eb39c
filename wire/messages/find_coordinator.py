"""FindCoordinator: who coordinates a group or transaction (KIP-98, 699, 932).

Source: Apache Kafka 4.4, FindCoordinatorRequest.json and FindCoordinatorResponse.json.
"""

from __future__ import annotations

from quorumd.wire.schema import INT8, INT16, INT32, STRING, Message, Struct, array, field


class FindCoordinatorRequest(Message, api_key=10, versions="0-6", flexible="3+"):
    key: str = field(STRING, versions="0-3")
    key_type: int = field(INT8, versions="1+")
    coordinator_keys: tuple[str, ...] = array(STRING, versions="4+")


class FindCoordinatorResponseCoordinator(Struct):
    key: str = field(STRING, versions="4+")
    node_id: int = field(INT32, versions="4+")
    host: str = field(STRING, versions="4+")
    port: int = field(INT32, versions="4+")
    error_code: int = field(INT16, versions="4+")
    error_message: str | None = field(STRING, versions="4+", nullable="4+", ignorable=True)


class FindCoordinatorResponse(Message, api_key=10, versions="0-6", flexible="3+"):
    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True)
    error_code: int = field(INT16, versions="0-3")
    error_message: str | None = field(STRING, versions="1-3", nullable="1-3", ignorable=True)
    node_id: int = field(INT32, versions="0-3")
    host: str = field(STRING, versions="0-3")
    port: int = field(INT32, versions="0-3")
    coordinators: tuple[FindCoordinatorResponseCoordinator, ...] = array(
        FindCoordinatorResponseCoordinator, versions="4+"
    )
