"""A connection with several requests under way, as TCP has it: they arrive in order, up to the first that is
lost; then the connection is gone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quorumd.wire.schema import Message as WireMessage
from simulation.clients.client import GIVE_UP_US, SOFTWARE, request_frame, served_by
from simulation.cluster import Cluster
from simulation.history.served import Served, view_of
from simulation.machines.channel import Channel
from simulation.machines.network import NetworkMessage
from simulation.machines.node_process import NodeProcess
from simulation.scheduler import Callback


class Pipeline:
    """From one client to one machine. `broken` is called once, if it ends by itself."""

    def __init__(self, cluster: Cluster, name: str, host: str, broken: Callable[[], None]) -> None:
        self._cluster = cluster
        self._network = cluster.env.network
        self._scheduler = cluster.env.scheduler
        self._name = name
        self._host = host
        self._broken = broken
        self._is_open = True
        self._sent = 0
        self._received = 0
        self._early: dict[int, Callback] = {}
        """Requests that have overtaken an earlier one, which is waited for."""
        self._process: NodeProcess | None = None
        self._awaited: set[int] = set()
        self._responses: dict[int, Callback] = {}
        """Responses that have overtaken that to an earlier request: a server responds in order."""

    def close(self) -> None:
        """Nothing is heard of it any more; what is under way may arrive all the same."""
        self._is_open = False

    def send(
        self,
        api_key: int,
        version: int,
        message: WireMessage,
        on_response: Callable[[bytes, Served], None],
        *,
        is_repeatable: bool,
    ) -> None:
        """`on_response` is called at most once, and not after `broken`."""
        number, asked_us = self._sent, self._scheduler.now_us
        self._sent += 1
        self._awaited.add(number)
        kind, frame = request_frame(api_key, version, message, number, self._name)

        def arrived(response: bytes, served: Served) -> None:
            if self._is_open and number in self._awaited:
                self._responses[number] = partial(on_response, response, served)
                self._take_responses()

        def hand_over(data: bytes, process: NodeProcess) -> None:
            before = view_of(process.node)

            def reply(response: bytes) -> None:
                served = served_by(process, before, asked_us)
                message = NetworkMessage(self._host, self._name, f"{kind} response", response)
                self._network.send(message, lambda data: arrived(data, served), self._lost)

            channel = Channel(process.listener, self._name, SOFTWARE)
            process.receive(data, channel, kind, reply, self._lost)

        self._scheduler.call_later(GIVE_UP_US, lambda: self._time_out(number))
        request = NetworkMessage(self._name, self._host, kind, frame, is_repeatable)
        self._network.send(request, lambda data: self._deliver(number, data, hand_over), self._lost)

    def _deliver(
        self, number: int, data: bytes, hand_over: Callable[[bytes, NodeProcess], None]
    ) -> None:
        process = self._cluster.process_at(self._host)
        if self._process is None:
            self._process = process
        if process is None or process is not self._process:
            self._scheduler.call_later(self._network.latency_us(), self._lost)
            return
        if number < self._received:  # doubled
            hand_over(data, process)
            return
        self._early[number] = partial(hand_over, data, process)
        while self._received in self._early:
            go_on = self._early.pop(self._received)
            self._received += 1
            go_on()

    def _take_responses(self) -> None:
        while self._is_open and self._awaited:
            first = min(self._awaited)
            on_response = self._responses.pop(first, None)
            if on_response is None:
                return
            self._awaited.discard(first)
            on_response()

    def _time_out(self, number: int) -> None:
        if number in self._awaited:
            self._lost()

    def _lost(self) -> None:
        if self._is_open:
            self._is_open = False
            self._broken()
