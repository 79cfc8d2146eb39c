"""The answer to a request that asks for more than one request may, where its response has a place for it."""

from __future__ import annotations

from typing import Any

from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.registry import APIS
from quorumd.wire.schema import Message


def refusal(api_key: int, version: int, reason: str) -> Message | None:
    """INVALID_REQUEST for the request as a whole; None if the version knows errors of its parts only."""
    response = APIS[api_key].response
    fields = {field.name for field in response.wire_spec.fields if version in field.versions}
    if "error_code" not in fields:
        return None
    values: dict[str, Any] = {"error_code": ErrorCode.INVALID_REQUEST}
    if "error_message" in fields:
        values["error_message"] = reason
    return response(**values)
