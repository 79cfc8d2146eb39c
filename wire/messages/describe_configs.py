"""DescribeConfigs: the configuration of topics and nodes (KIP-133, 226, 569).

Source: Apache Kafka 4.4, DescribeConfigsRequest.json and DescribeConfigsResponse.json.
"""

from __future__ import annotations

from quorumd.wire.schema import BOOL, INT8, INT16, INT32, STRING, Message, Struct, array, field


class DescribeConfigsRequestResource(Struct):
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configuration_keys: tuple[str, ...] | None = array(STRING, nullable="0+")


class DescribeConfigsRequest(Message, api_key=32, versions="1-4", flexible="4+"):
    resources: tuple[DescribeConfigsRequestResource, ...] = array(DescribeConfigsRequestResource)
    include_synonyms: bool = field(BOOL)
    include_documentation: bool = field(BOOL, versions="3+")


class DescribeConfigsResponseSynonym(Struct):
    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")
    source: int = field(INT8)


class DescribeConfigsResponseConfig(Struct):
    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")
    read_only: bool = field(BOOL)
    config_source: int = field(INT8, default=-1)
    is_sensitive: bool = field(BOOL)
    synonyms: tuple[DescribeConfigsResponseSynonym, ...] = array(DescribeConfigsResponseSynonym)
    config_type: int = field(INT8, versions="3+", ignorable=True)
    documentation: str | None = field(STRING, versions="3+", nullable="0+", ignorable=True)


class DescribeConfigsResponseResult(Struct):
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: tuple[DescribeConfigsResponseConfig, ...] = array(DescribeConfigsResponseConfig)


class DescribeConfigsResponse(Message, api_key=32, versions="1-4", flexible="4+"):
    throttle_time_ms: int = field(INT32)
    results: tuple[DescribeConfigsResponseResult, ...] = array(DescribeConfigsResponseResult)
