"""InitProducerId: a fresh producer id for each idempotent producer. Source: KIP-98."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

PRODUCER_ID_BITS: Final = 62


def random_producer_id() -> int:
    """0 to 2^62 - 1: two nodes may draw without asking each other."""
    return secrets.randbits(PRODUCER_ID_BITS)


def init_producer_id(
    request: InitProducerIdRequest, draw: Callable[[], int] = random_producer_id
) -> InitProducerIdResponse:
    """A fresh id with epoch 0, also for a producer that names its old one."""
    if request.transactional_id is not None:
        return InitProducerIdResponse(
            error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            if request.transactional_id
            else ErrorCode.INVALID_REQUEST,
            producer_epoch=-1,
        )
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=draw(), producer_epoch=0)
