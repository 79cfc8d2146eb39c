"""FindCoordinator: this log has neither consumer groups nor transactions, and says so at once."""

from __future__ import annotations

from typing import Final

from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)

GROUP, TRANSACTION, SHARE_GROUP = 0, 1, 2

_NO_GROUPS: Final = (
    "this log has no consumer groups: assign partition 0 of __cluster_metadata and keep the "
    "offsets yourself (without group.id or subscribe)"
)
_NO_TRANSACTIONS: Final = (
    "this log has no transactions: use an idempotent producer without transactional.id"
)


def find_coordinator(request: FindCoordinatorRequest, version: int) -> FindCoordinatorResponse:
    """There is none. The errors are ones that clients raise at once, where others are retried for ever."""
    error, message = ErrorCode.GROUP_AUTHORIZATION_FAILED, _NO_GROUPS
    if request.key_type == TRANSACTION:
        error, message = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _NO_TRANSACTIONS
    elif request.key_type not in (GROUP, SHARE_GROUP):
        error, message = ErrorCode.INVALID_REQUEST, f"key type {request.key_type} is unknown"
    if version < 4:
        return FindCoordinatorResponse(
            error_code=error, error_message=message, node_id=-1, host="", port=-1
        )
    return FindCoordinatorResponse(
        coordinators=tuple(
            FindCoordinatorResponseCoordinator(
                key=key, node_id=-1, host="", port=-1, error_code=error, error_message=message
            )
            for key in request.coordinator_keys
        )
    )
