"""FindCoordinator: errors that clients do not retry."""

from __future__ import annotations

import pytest

from quorumd.server.requests.find_coordinator import find_coordinator
from quorumd.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.support.cluster import decoded_again


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize(("key_type", "error"), [(0, 30), (1, 53), (2, 30), (3, 42), (-1, 42)])
def test_there_is_no_coordinator_and_the_error_is_not_retried(
    version: int, key_type: int, error: int
) -> None:
    keys = ("g1", "g2") if version >= 4 else ()
    request = FindCoordinatorRequest(key="g0", key_type=key_type, coordinator_keys=keys)
    answer = decoded_again(find_coordinator(request, version), version)
    if version < 4:
        found = [(answer.error_code, answer.error_message, answer.node_id, answer.port)]
    else:
        assert [c.key for c in answer.coordinators] == ["g1", "g2"]
        found = [(c.error_code, c.error_message, c.node_id, c.port) for c in answer.coordinators]
    for code, text, node_id, port in found:
        assert (code, node_id, port) == (error, -1, -1)
        assert bool(text) == (version >= 1)


def test_an_admin_client_may_ask_for_hundreds_of_groups_at_once() -> None:
    """Without a response to all it would ask again, on and on."""
    keys = tuple(f"group-{number:0243}" for number in range(500))
    request = decoded_again(FindCoordinatorRequest(coordinator_keys=keys), 6)
    answer = find_coordinator(request, 6)
    assert [(c.key, c.error_code) for c in answer.coordinators] == [(key, 30) for key in keys]
