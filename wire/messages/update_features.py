"""UpdateFeatures: another level of a feature such as kraft.version (KIP-584, 778, 1022).

Source: Apache Kafka 4.4, UpdateFeaturesRequest.json and UpdateFeaturesResponse.json.
"""

from __future__ import annotations

from quorumd.wire.schema import BOOL, INT8, INT16, INT32, STRING, Message, Struct, array, field


class UpdateFeaturesRequestFeatureUpdate(Struct):
    """A level of 0 removes the feature; `upgrade_type` is 1 for an upgrade, 2 and 3 for downgrades."""

    feature: str = field(STRING)
    max_version_level: int = field(INT16)
    allow_downgrade: bool = field(BOOL, versions="0")
    upgrade_type: int = field(INT8, versions="1+", default=1)


class UpdateFeaturesRequest(Message, api_key=57, versions="0-2", flexible="0+"):
    timeout_ms: int = field(INT32, default=60000)
    feature_updates: tuple[UpdateFeaturesRequestFeatureUpdate, ...] = array(
        UpdateFeaturesRequestFeatureUpdate
    )
    validate_only: bool = field(BOOL, versions="1+")


class UpdateFeaturesResponseResult(Struct):
    feature: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class UpdateFeaturesResponse(Message, api_key=57, versions="0-2", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    results: tuple[UpdateFeaturesResponseResult, ...] = array(
        UpdateFeaturesResponseResult, versions="0-1", ignorable=True
    )
