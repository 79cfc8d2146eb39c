"""ControllerRegistration: a controller tells the active one its listeners and features (KIP-919).

Source: Apache Kafka 4.3, ControllerRegistrationRequest.json and ControllerRegistrationResponse.json.
"""

from __future__ import annotations

from uuid import UUID

from quorumd.wire.schema import (
    BOOL,
    INT16,
    INT32,
    STRING,
    UINT16,
    UUID_,
    Message,
    Struct,
    array,
    field,
)


class ControllerRegistrationRequestListener(Struct):
    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)
    security_protocol: int = field(INT16)


class ControllerRegistrationRequestFeature(Struct):
    name: str = field(STRING)
    min_supported_version: int = field(INT16)
    max_supported_version: int = field(INT16)


class ControllerRegistrationRequest(Message, api_key=70, versions="0", flexible="0+"):
    controller_id: int = field(INT32)
    incarnation_id: UUID = field(UUID_)
    zk_migration_ready: bool = field(BOOL)
    listeners: tuple[ControllerRegistrationRequestListener, ...] = array(
        ControllerRegistrationRequestListener
    )
    features: tuple[ControllerRegistrationRequestFeature, ...] = array(
        ControllerRegistrationRequestFeature
    )


class ControllerRegistrationResponse(Message, api_key=70, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
