"""A witness that configuration names registers at Kafka's active controller: once, and until it is taken."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from quorumd.server.model.kafka_drift import KafkaDrift
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.runtime import Runtime
from quorumd.server.partition.controller_registration import (
    SSL,
    VERSION,
    ControllerRegistration,
)
from quorumd.wire.codec import encode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from tests.raft.harness import Bench, follower, unattached, voter_set
from tests.server.leader_questions import NodeClock, Questions


def response(error: ErrorCode = ErrorCode.NONE) -> bytes:
    return encode(ControllerRegistrationResponse(error_code=error, error_message=None), VERSION)


def witness(**more: Any) -> Bench:
    return follower(3, is_witness=True, is_kafka_log=True, **more)


@dataclass
class Registering:
    """A node, what it has asked, and the clock."""

    bench: Bench = field(default_factory=witness)
    clock: NodeClock = field(default_factory=NodeClock)
    questions: Questions = field(default_factory=lambda: Questions(VERSION))

    def __post_init__(self) -> None:
        self.drift = KafkaDrift(Metrics())
        runtime = cast(Runtime, self.clock)
        self.registration = ControllerRegistration(
            self.bench.node, self.questions, runtime, self.drift, is_tls=True
        )

    @property
    def asked(self) -> list[ControllerRegistrationRequest]:
        return [cast(ControllerRegistrationRequest, each.message) for each in self.questions]

    def responded(self, frame: bytes, body_at: int) -> None:
        self.questions[-1].responded(frame, body_at)

    def failed(self, reason: str) -> None:
        self.questions[-1].failed(reason)

    def wait(self) -> None:
        self.clock.move_to(self.clock.now + self.bench.node.config.fetch_timeout_ms / 1000)


def test_it_registers_once() -> None:
    node = Registering()
    for _ in range(2):
        node.registration.on_role()
    (request,) = node.asked
    local = node.bench.node.config
    assert request.controller_id == local.local.id
    assert request.incarnation_id.int
    (listener,) = request.listeners
    assert (listener.host, listener.port) == (local.endpoints[0].host, local.endpoints[0].port)
    assert listener.security_protocol == SSL
    assert "metadata.version" in {each.name for each in request.features}
    node.responded(response(), 0)
    node.registration.on_role()
    node.wait()
    assert len(node.asked) == 1


@pytest.mark.parametrize("how", ["refused", "no response", "lost"])
def test_it_asks_again_until_a_controller_has_taken_it(how: str) -> None:
    node = Registering()
    node.registration.on_role()
    for count in (2, 3):
        if how == "lost":
            node.failed("the connection was lost")
        else:
            refused = response(ErrorCode.NOT_CONTROLLER)
            node.responded(refused if how == "refused" else b"", 0)
        assert len(node.asked) == count - 1, "not at once"
        node.wait()
        assert len(node.asked) == count
    assert len({each.incarnation_id for each in node.asked}) == 1
    node.responded(response(), 0)
    node.wait()
    assert len(node.asked) == 3


def test_why_it_is_not_taken_is_logged_once_for_each_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Registering()
    with caplog.at_level("INFO"):
        node.registration.on_role()
        for reason in ("it does not know version 0", "it does not know version 0", "no response"):
            node.failed(reason)
            node.wait()
    fields = [each.__dict__["quorumd_fields"] for each in caplog.records]
    assert [each["reason"] for each in fields] == ["it does not know version 0", "no response"]


def test_one_that_cannot_promise_what_the_quorum_asks_for_does_not_register_until_it_can() -> None:
    node = Registering()
    node.drift.note_records((), [("metadata.version", 99)])
    assert node.drift.obstacles
    node.registration.on_role()
    assert not node.asked
    node.drift.note_records((), [("metadata.version", 10)])
    node.wait()
    assert len(node.asked) == 1


@pytest.mark.parametrize(
    "bench",
    [
        follower(3, is_kafka_log=True),
        follower(3, is_witness=True),
        unattached(3, is_witness=True, is_kafka_log=True),
        witness(configured_voters=voter_set(2, 3, by_id=True)),
    ],
)
def test_nobody_else_does(bench: Bench) -> None:
    node = Registering(bench)
    node.registration.on_role()
    node.wait()
    assert not node.asked


def test_after_the_end_nobody_asks() -> None:
    node = Registering()
    node.registration.on_role()
    node.registration.close()
    node.failed("the connection was lost")
    node.wait()
    assert len(node.asked) == 1
