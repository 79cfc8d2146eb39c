"""A simulated process: an event loop on a machine that may be paused or killed at any moment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from quorumd.raft.types import Endpoint, ReplicaKey
from quorumd.server.net.inbound_request import InboundRequest
from simulation.history.replica import Replica
from simulation.machines.channel import Channel, Reply
from simulation.machines.disk import ProcessKilled
from simulation.machines.hardware import Hardware
from simulation.scheduler import Callback, Timer
from simulation.violation import ProcessEnded


class Connection(Protocol):
    """The far end of a connection to a process."""

    def peer_died(self) -> None:
        """The process is gone."""


class Process(ABC):
    """From its start to its end; what it runs is the business of `NodeProcess`."""

    def __init__(self, machine: Hardware, replica: Replica) -> None:
        self.machine = machine
        self.env = machine.env
        self.scheduler = machine.env.scheduler
        self.host = machine.host
        self.replica = replica
        self.listener: Endpoint = machine.config.listeners[0]
        self.is_alive = True
        self.connections: list[Connection] = []
        """Of others, that end here."""
        self.last_message = "start"
        self.effects_left: int | None = None
        """After so many things that leave the event loop, the process is killed."""

    @property
    def key(self) -> ReplicaKey:
        return self.replica.key

    @property
    @abstractmethod
    def role(self) -> str:
        """Role of the node, for people."""

    @property
    @abstractmethod
    def following(self) -> tuple[int, ReplicaKey | None]:
        """The epoch of the node, and its leader."""

    @abstractmethod
    def leads(self, epoch: int, leader: ReplicaKey | None) -> bool:
        """True if the node is this leader of this epoch."""

    @abstractmethod
    def on_peer_connected(self, replica_id: int) -> None:
        """A connection of this replica has come in."""

    # -- events

    def call(self, delay_us: int, callback: Callback) -> Timer:
        """Have something happen in this process after a while, if it is alive then."""
        return self.scheduler.call_later(max(0, delay_us), lambda: self.run(callback))

    def run(self, callback: Callback) -> None:
        """Let something happen in this process, now or when it is not paused any more."""
        if not self.is_alive:
            return
        if self.machine.is_paused:
            self.machine.backlog.append(lambda: self.run(callback))
            return
        try:
            callback()
        except ProcessKilled:
            self.after_event(is_cut_short=True)
            self.machine.end_process("killed", power=None)
        except ProcessEnded:
            self.after_event(is_cut_short=True)
            self.machine.end_process("ended by itself")
        else:
            self.after_event()

    @abstractmethod
    def after_event(self, *, is_cut_short: bool = False) -> None:
        """Something has happened in this process, or has begun to."""

    def on_effect(self) -> None:
        """Something is about to leave the event loop: to the disk, to a peer, to a client."""
        if self.effects_left is not None:
            self.effects_left -= 1
            if self.effects_left < 0:
                self.count("crash at an effect")
                raise ProcessKilled

    def count(self, fault: str) -> None:
        """Note that a fault has hit this process."""
        self.count_case(fault, self.last_message)

    def count_case(self, what: str, case: str) -> None:
        """Note that this process has come to something rare."""
        self.env.coverage.count(what, self.role, case)

    # -- messages

    @abstractmethod
    def receive(
        self, frame: bytes, channel: Channel, kind: str, reply: Reply, reset: Callback
    ) -> None:
        """A request has arrived; `frame` has no length in front."""

    @abstractmethod
    def on_request(self, api_key: int, version: int, frame: bytes) -> None:
        """A request leaves."""

    @abstractmethod
    def on_response(self, request: InboundRequest, arrived_us: int, frame: bytes) -> None:
        """A response leaves: what it says must be true already."""

    # -- the end

    def end(self) -> None:
        """Nothing happens in this process any more; those connected to it hear of it, as a rule."""
        self.is_alive = False
        connections, self.connections = self.connections, []
        for connection in connections:
            connection.peer_died()
