"""DescribeConfigs: topic and nodes exist, and have no configuration to read over the network."""

from __future__ import annotations

from quorumd.server.model.partition_view import PartitionView
from quorumd.server.model.topic import METADATA
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseResult,
)

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4


def describe_configs(
    view: PartitionView, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Known resources have no configuration that could be read or changed over the network."""
    return DescribeConfigsResponse(
        results=tuple(_configs_of(view, resource) for resource in request.resources)
    )


def _configs_of(
    view: PartitionView, asked: DescribeConfigsRequestResource
) -> DescribeConfigsResponseResult:
    error, message = ErrorCode.NONE, None
    if asked.resource_type == TOPIC_RESOURCE:
        if asked.resource_name != METADATA.name:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            message = f"the only topic is {METADATA.name}"
    elif asked.resource_type == BROKER_RESOURCE:
        ids = {*view.voters.ids, view.local.id}
        if asked.resource_name and asked.resource_name not in map(str, ids):
            error = ErrorCode.INVALID_REQUEST
            message = f"no node has that id; there are {', '.join(map(str, sorted(ids)))}"
    else:
        error = ErrorCode.INVALID_REQUEST
        message = "only topics (type 2) and nodes (type 4) can be described"
    return DescribeConfigsResponseResult(
        error_code=error,
        error_message=message,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )
