"""A witness that `controller.quorum.voters` names registers itself at Kafka's active controller.

Where configuration names the voters, Kafka raises no feature before each of them has said what it supports;
it records that in the metadata log. Voters of the log alone need not register. Source: KIP-919, KIP-1022.
"""

from __future__ import annotations

from typing import Final

from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.server.model.kafka_drift import KAFKA_FEATURES, KafkaDrift
from quorumd.server.model.logs import Logger
from quorumd.server.model.peer_calls import AskLeader
from quorumd.server.model.runtime import Runtime
from quorumd.server.partition.runtime_timer import RuntimeTimer
from quorumd.storage.meta_properties import random_storage_id
from quorumd.wire.codec import decode
from quorumd.wire.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationRequestFeature,
    ControllerRegistrationRequestListener,
    ControllerRegistrationResponse,
)
from quorumd.wire.schema import ZERO_UUID

LOG = Logger("raft")
VERSION: Final = 0
PLAINTEXT, SSL = 0, 1
"""Kafka's numbers of security protocols."""


class ControllerRegistration:
    """Once in the life of a process, and again after each refusal until the leader has taken it."""

    def __init__(
        self,
        node: RaftNode,
        ask_leader: AskLeader,
        runtime: Runtime,
        drift: KafkaDrift,
        *,
        is_tls: bool,
    ) -> None:
        self._drift = drift
        config = node.config
        is_named = node.local.id in config.configured_voters.ids
        self._is_due = config.is_kafka_log and config.is_witness and is_named
        self._is_asked = False
        self._logged_reason = ""
        self._node = node
        self._ask_leader = ask_leader
        self._runtime = runtime
        self._timer = RuntimeTimer(runtime, self.on_role)
        self._incarnation_id = random_storage_id(runtime.draw) if self._is_due else ZERO_UUID
        self._security_protocol = SSL if is_tls else PLAINTEXT

    def on_role(self) -> None:
        """A role, or a leader, is new: register if that is due."""
        if self._is_due and not self._is_asked and self._node.role is Role.FOLLOWER:
            if self._drift.obstacles:
                return self._ask_later()
            self._is_asked = True
            self._ask_leader(self._request(), VERSION, self._responded, self._failed)
        return None

    def close(self) -> None:
        """Ask no more."""
        self._is_due = False
        self._timer.cancel()

    def _request(self) -> ControllerRegistrationRequest:
        return ControllerRegistrationRequest(
            controller_id=self._node.local.id,
            incarnation_id=self._incarnation_id,
            listeners=tuple(
                ControllerRegistrationRequestListener(
                    name=at.name,
                    host=at.host,
                    port=at.port,
                    security_protocol=self._security_protocol,
                )
                for at in self._node.config.endpoints
            ),
            features=tuple(
                ControllerRegistrationRequestFeature(
                    name=name, min_supported_version=lowest, max_supported_version=highest
                )
                for name, (lowest, highest) in KAFKA_FEATURES.items()
            ),
        )

    def _responded(self, frame: bytes, body_at: int) -> None:
        try:
            response = decode(ControllerRegistrationResponse, VERSION, frame, body_at)
        except ValueError as error:
            return self._failed(str(error))
        if response.error_code:
            return self._failed(response.error_message or f"error {response.error_code}")
        LOG.info("registered at the active controller")
        self.close()
        return None

    def _failed(self, reason: str) -> None:
        """An active controller takes a moment to be one, and a former one sends others away."""
        if reason != self._logged_reason:
            self._logged_reason = reason
            LOG.info(
                "the active controller has not registered this node: asking again", reason=reason
            )
        self._is_asked = False
        self._ask_later()

    def _ask_later(self) -> None:
        if self._is_due:
            wait_ms = self._node.config.fetch_timeout_ms
            self._timer.set(self._runtime.monotonic_ms() + wait_ms)
