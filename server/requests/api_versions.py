"""ApiVersions: the APIs, versions and features of this node. Source: KIP-35, KIP-511, KIP-584, KIP-1242."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from quorumd.server.model.kafka_drift import KAFKA_FEATURES, KRAFT_VERSION
from quorumd.server.model.partition_view import PartitionView
from quorumd.wire.control_records import KRAFT_VERSION_MAX
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseApiKey,
    ApiVersionsResponseFinalizedFeature,
    ApiVersionsResponseSupportedFeature,
)
from quorumd.wire.registry import (
    API_VERSIONS_KEY,
    APIS,
    CONTROLLER_KEYS,
    FIRST_OWN_KEY,
    PRODUCE_KEY,
)

OWN_SOFTWARE: Final = "quorumctl"

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def api_versions(
    view: PartitionView, request: ApiVersionsRequest, version: int
) -> ApiVersionsResponse:
    """The APIs of this node. From version 3 on, software must give a name and version that fit KIP-511.

    REBOOTSTRAP_REQUIRED if the client names another node.
    """
    if version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if _is_misrouted(view, request):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    finalized: tuple[ApiVersionsResponseFinalizedFeature, ...] = ()
    if view.kraft_version > 0:
        finalized = (
            ApiVersionsResponseFinalizedFeature(
                name=KRAFT_VERSION,
                max_version_level=view.kraft_version,
                min_version_level=view.kraft_version,
            ),
        )
    is_own = request.client_software_name == OWN_SOFTWARE
    is_beside_kafka = view.is_kafka_log and view.is_witness
    return ApiVersionsResponse(
        api_keys=_keys(is_own=is_own, is_beside_kafka=is_beside_kafka),
        # Clients below version 4 refuse a feature whose minimum is 0.
        supported_features=_features(view) if version >= 4 else (),
        finalized_features=finalized,
        finalized_features_epoch=view.kraft_version_offset,
    )


def _is_misrouted(view: PartitionView, request: ApiVersionsRequest) -> bool:
    """The client means another node, or another cluster: this address was that one's (KIP-1242)."""
    if request.cluster_id is None or request.node_id < 0:
        return False
    is_foreign = view.cluster_id is not None and request.cluster_id != view.cluster_id
    return is_foreign or request.node_id != view.local.id


def api_versions_unsupported() -> ApiVersionsResponse:
    """The response to ApiVersions of an unknown version, to be sent as version 0 (KIP-511)."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=tuple(key for key in _ALL_KEYS if key.api_key == API_VERSIONS_KEY),
    )


def _features(view: PartitionView) -> tuple[ApiVersionsResponseSupportedFeature, ...]:
    """Without one, Kafka's leaders refuse to make a voter of a node: of one that only observes them, or
    could not promise what their voters do."""
    if not view.is_kafka_log:
        return _FEATURES
    return _KAFKA_FEATURES if view.is_witness and view.offers_vote else ()


@cache
def _keys(*, is_own: bool, is_beside_kafka: bool) -> tuple[ApiVersionsResponseApiKey, ...]:
    """Brokers take a witness that leads for a moment for their controller: a response sends them on."""
    return tuple(
        key
        for key in _ALL_KEYS
        if (is_own or key.api_key < FIRST_OWN_KEY)
        and (is_beside_kafka or key.api_key not in CONTROLLER_KEYS)
    )


# Produce is listed from 0, as a broker does: librdkafka below 2.12 turns features off otherwise.
_ALL_KEYS: Final = tuple(
    ApiVersionsResponseApiKey(
        api_key=key,
        min_version=0 if key == PRODUCE_KEY else APIS[key].min_version,
        max_version=APIS[key].max_version,
    )
    for key in sorted(APIS)
)
_FEATURES: Final = (
    ApiVersionsResponseSupportedFeature(
        name=KRAFT_VERSION, min_version=0, max_version=KRAFT_VERSION_MAX
    ),
)
_KAFKA_FEATURES: Final = tuple(
    ApiVersionsResponseSupportedFeature(name=name, min_version=lowest, max_version=highest)
    for name, (lowest, highest) in KAFKA_FEATURES.items()
)
