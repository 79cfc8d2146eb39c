"""InitProducerId: fresh ids; transactions are refused."""

from __future__ import annotations

import pytest

from quorumd.server.requests.init_producer_id import init_producer_id, random_producer_id
from quorumd.wire.messages.init_producer_id import InitProducerIdRequest
from tests.support.cluster import decoded_again


@pytest.mark.parametrize("version", range(6))
def test_a_producer_gets_a_fresh_id_with_epoch_0(version: int) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
    answer = decoded_again(init_producer_id(request, lambda: (1 << 62) - 1), version)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, (1 << 62) - 1, 0)


@pytest.mark.parametrize(
    ("transactional_id", "producer_id", "epoch", "error"),
    [(None, 7, 3, 0), (None, 7, -1, 42), (None, -1, 3, 42), ("", -1, -1, 42), ("t", -1, -1, 53)],
)
def test_init_producer_id_refuses_transactions_and_half_an_identity(
    transactional_id: str | None, producer_id: int, epoch: int, error: int
) -> None:
    request = InitProducerIdRequest(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch
    )
    answer = decoded_again(init_producer_id(request, lambda: 99), 5)
    expected = (error, -1, -1) if error else (0, 99, 0)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == expected


def test_random_producer_ids_are_not_negative_and_have_62_bits() -> None:
    assert all(0 <= random_producer_id() < 1 << 62 for _ in range(200))
