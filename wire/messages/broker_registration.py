"""BrokerRegistration: a broker tells the controller that it has started (KIP-631).

Source: Apache Kafka 4.3, BrokerRegistrationRequest.json and BrokerRegistrationResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import (
    BOOL,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID_,
    Message,
    Struct,
    array,
    field,
)


class BrokerRegistrationRequestListener(Struct):
    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)
    security_protocol: int = field(INT16)


class BrokerRegistrationRequestFeature(Struct):
    name: str = field(STRING)
    min_supported_version: int = field(INT16)
    max_supported_version: int = field(INT16)


class BrokerRegistrationRequest(Message, api_key=62, versions="0-4", flexible="0+"):
    broker_id: int = field(INT32)
    cluster_id: str = field(STRING)
    incarnation_id: UUID = field(UUID_)
    listeners: tuple[BrokerRegistrationRequestListener, ...] = array(
        BrokerRegistrationRequestListener
    )
    features: tuple[BrokerRegistrationRequestFeature, ...] = array(BrokerRegistrationRequestFeature)
    rack: str | None = field(STRING, nullable="0+")
    is_migrating_zk_broker: bool = field(BOOL, versions="1+")
    log_dirs: tuple[UUID, ...] = array(UUID_, versions="2+", ignorable=True)
    previous_broker_epoch: int = field(INT64, versions="3+", ignorable=True, default=-1)


class BrokerRegistrationResponse(Message, api_key=62, versions="0-4", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    broker_epoch: int = field(INT64, default=-1)
