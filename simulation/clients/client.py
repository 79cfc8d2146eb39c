"""The common part of all clients of the quorum: a node that they ask, in Kafka's protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import TypeVar

from quorumd.wire.codec import decode, encode
from quorumd.wire.headers import decode_response_header, encode_request_header
from quorumd.wire.registry import APIS
from quorumd.wire.schema import Message as WireMessage
from simulation.cluster import Cluster
from simulation.history.served import NodeView, Served, view_of
from simulation.machines.channel import Channel
from simulation.machines.network import NetworkMessage
from simulation.machines.node_process import NodeProcess
from simulation.scheduler import MS, Timer

FETCH = 1
SOFTWARE = "simulated-client"
GIVE_UP_US = 1_500 * MS
M = TypeVar("M", bound=WireMessage)


def request_frame(
    api_key: int, version: int, message: WireMessage, number: int, client: str
) -> tuple[str, bytes]:
    """Name of this request for people, and its bytes, length included."""
    header = encode_request_header(api_key, version, number, client)
    body = encode(message, version)
    kind = "Consumer fetch" if api_key == FETCH else APIS[api_key].name
    return kind, (len(header) + len(body)).to_bytes(4, "big") + header + body


def served_by(process: NodeProcess, before: NodeView, asked_us: int) -> Served:
    """A response leaves now; `before` is how the node was when the question arrived."""
    config = process.machine.config
    return Served(
        before,
        view_of(process.node),
        asked_us,
        process.machine.is_prompt,
        config.quorum_fetch_timeout_ms,
    )


class Client(ABC):
    """A name, a target that is changed when it does not lead, and one request at a time."""

    def __init__(self, cluster: Cluster, name: str, random: Random) -> None:
        self.cluster = cluster
        self.env = cluster.env
        self.name = name
        self.random = random
        self.target = random.choice(cluster.hosts)
        self.is_stopping = False
        """Finish what is under way, begin nothing new."""
        self.served: Served | None = None
        """The node that has given the last response."""
        self._asked = 0
        self._timer: Timer | None = None

    @abstractmethod
    def start(self) -> None:
        """Begin to ask; called once."""

    def ask(
        self,
        api_key: int,
        version: int,
        message: WireMessage,
        on_response: Callable[[bytes], None],
        failed: Callable[[], None],
        *,
        is_repeatable: bool,
    ) -> None:
        """Send to the target; exactly one of the two is called."""
        cluster, network, scheduler = self.cluster, self.env.network, self.env.scheduler
        self._asked += 1
        asked, asked_us = self._asked, scheduler.now_us
        kind, frame = request_frame(api_key, version, message, asked, self.name)
        host = self.target

        def lost() -> None:
            if asked == self._asked:
                self._asked += 1
                failed()

        def arrived(response: bytes, served: Served) -> None:
            if asked == self._asked:
                self._asked += 1
                if self._timer is not None:
                    self._timer.cancel()
                self.served = served
                on_response(response)

        def deliver(data: bytes) -> None:
            process = cluster.process_at(host)
            if process is None:
                scheduler.call_later(network.latency_us(), lost)
                return
            before = view_of(process.node)

            def reply(response: bytes) -> None:
                served = served_by(process, before, asked_us)
                message = NetworkMessage(host, self.name, f"{kind} response", response)
                network.send(message, lambda data: arrived(data, served), lost)

            channel = Channel(process.listener, self.name, SOFTWARE)
            process.receive(data, channel, kind, reply, lost)

        if self._timer is not None:
            self._timer.cancel()
        self._timer = scheduler.call_later(GIVE_UP_US, lost)
        request = NetworkMessage(self.name, host, kind, frame, is_repeatable)
        network.send(request, deliver, lost)

    def change_target(self, leader_id: int = -1) -> None:
        """Ask the leader that the response named next, or any node."""
        self.target = self.cluster.host_of(leader_id) or self.random.choice(self.cluster.hosts)

    def later(self, delay_us: int, callback: Callable[[], None]) -> None:
        """Call back after this delay."""
        self.env.scheduler.call_later(delay_us, callback)

    @staticmethod
    def decode_response(cls: type[M], api_key: int, version: int, frame: bytes) -> M:
        """The message in a frame that has no length in front."""
        _, at = decode_response_header(api_key, version, frame)
        return decode(cls, version, frame, at)
