"""ApiVersions: which requests, versions and features a node serves (KIP-35, 511, 584).

Tag 10000 of the response is this project's own: it goes from node to node, and Kafka's readers skip it.
Source: Apache Kafka 4.4, ApiVersionsRequest.json and ApiVersionsResponse.json.
"""

from __future__ import annotations

from quorumd.wire.schema import BOOL, INT16, INT32, INT64, STRING, Message, Struct, array, field


class ApiVersionsRequest(Message, api_key=18, versions="0-5", flexible="3+"):
    """From version 5 on a client says where it means to be (KIP-1242); both or neither."""

    client_software_name: str = field(STRING, versions="3+", ignorable=True)
    client_software_version: str = field(STRING, versions="3+", ignorable=True)
    cluster_id: str | None = field(
        STRING, versions="5+", nullable="5+", default=None, ignorable=True
    )
    node_id: int = field(INT32, versions="5+", default=-1, ignorable=True)


class ApiVersionsResponseApiKey(Struct):
    api_key: int = field(INT16)
    min_version: int = field(INT16)
    max_version: int = field(INT16)


class ApiVersionsResponseSupportedFeature(Struct):
    name: str = field(STRING, versions="3+")
    min_version: int = field(INT16, versions="3+")
    max_version: int = field(INT16, versions="3+")


class ApiVersionsResponseFinalizedFeature(Struct):
    name: str = field(STRING, versions="3+")
    max_version_level: int = field(INT16, versions="3+")
    min_version_level: int = field(INT16, versions="3+")


class ApiVersionsResponse(Message, api_key=18, versions="0-5", flexible="3+"):
    """`peers_in_plaintext`: the node has a TLS listener, but connects to others in plaintext."""

    error_code: int = field(INT16)
    api_keys: tuple[ApiVersionsResponseApiKey, ...] = array(ApiVersionsResponseApiKey)
    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True)
    supported_features: tuple[ApiVersionsResponseSupportedFeature, ...] = array(
        ApiVersionsResponseSupportedFeature, versions="3+", tag=0, ignorable=True
    )
    finalized_features_epoch: int = field(INT64, versions="3+", default=-1, tag=1, ignorable=True)
    finalized_features: tuple[ApiVersionsResponseFinalizedFeature, ...] = array(
        ApiVersionsResponseFinalizedFeature, versions="3+", tag=2, ignorable=True
    )
    zk_migration_ready: bool = field(BOOL, versions="3+", tag=3, ignorable=True)
    peers_in_plaintext: bool = field(BOOL, versions="3+", tag=10000, ignorable=True)
