"""Error responses to a request as a whole: too large, beyond its limits, or for Kafka's controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorumd.server.requests.produce_response import topic_of
from quorumd.server.translate.voter_changes import UPDATE_VOTER
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.fast import parse_produce_size
from quorumd.wire.framing import HEAD_BYTES
from quorumd.wire.messages.produce import (
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from quorumd.wire.registry import APIS, PRODUCE_KEY
from quorumd.wire.request_limits import frame_bytes_max
from quorumd.wire.schema import Message


def refusal(api_key: int, version: int, reason: str) -> Message | None:
    """INVALID_REQUEST for the request as a whole; None if the version knows errors of its parts only.

    None for UpdateRaftVoter, too: a Kafka process that sends one ends at that error.
    """
    if api_key == UPDATE_VOTER:
        return None
    response = APIS[api_key].response
    fields = {field.name for field in response.wire_spec.fields if version in field.versions}
    if "error_code" not in fields:
        return None
    values: dict[str, Any] = {"error_code": ErrorCode.INVALID_REQUEST}
    if "error_message" in fields:
        values["error_message"] = reason
    return response(**values)


def too_large(api_key: int, version: int, frame: bytes, body_at: int) -> ProduceResponse | None:
    """MESSAGE_TOO_LARGE for a Produce request that announces more records than a request may hold.

    None for any other request, for several partitions, and for acks=0.
    """
    if api_key != PRODUCE_KEY or (found := parse_produce_size(version, frame, body_at)) is None:
        return None
    head, size_bytes = found
    max_bytes = frame_bytes_max(PRODUCE_KEY)
    if not head.acks or size_bytes <= max_bytes - HEAD_BYTES:
        return None
    partition = ProduceResponsePartition(
        index=head.partition,
        error_code=int(ErrorCode.MESSAGE_TOO_LARGE),
        base_offset=-1,
        log_start_offset=-1,
        error_message=f"{size_bytes} bytes of records; a request may have {max_bytes} bytes."
        " Send smaller batches.",
    )
    asked = topic_of(head, version)
    topic = ProduceResponseTopic(
        name=asked.name, topic_id=asked.topic_id, partition_responses=(partition,)
    )
    return ProduceResponse(responses=(topic,))


def not_controller(api_key: int) -> Message:
    """NOT_CONTROLLER, for a request to Kafka's active controller: its sender searches for another one."""
    response: Callable[..., Message] = APIS[api_key].response
    return response(error_code=ErrorCode.NOT_CONTROLLER)
