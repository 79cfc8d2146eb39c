"""Inquirers ask any node: where does the log begin and end, what is at a time, where does an epoch end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ListOffsetsResponse,
)
from quorumd.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
    OffsetForLeaderEpochResponse,
)
from quorumd.wire.metadata_topic import TOPIC
from simulation.checkers.lookups import Lookup
from simulation.clients.client import Client
from simulation.clients.producer import FIRST_TIMESTAMP_MS
from simulation.cluster import Cluster
from simulation.history.served import Served
from simulation.scheduler import MS

LIST_OFFSETS, LIST_OFFSETS_VERSION = 2, 8
EPOCH_END, EPOCH_END_VERSION = 23, 4
LATEST, EARLIEST = -1, -2


class Inquirer(Client):
    """See the module's docstring."""

    def __init__(self, cluster: Cluster, name: str, random: Random) -> None:
        super().__init__(cluster, name, random)
        self._what = ""

    def start(self) -> None:
        self._next()

    def _next(self) -> None:
        self.later(self.random.randrange(20 * MS, 300 * MS), self._ask)

    def _ask(self) -> None:
        if self.is_stopping:
            return
        random = self.random
        if random.random() < 0.3:
            self.change_target()
        self._what = what = random.choice(["latest", "latest", "earliest", "timestamp", "epoch"])
        if what == "epoch":
            epoch = random.randint(0, 1 + self._last_epoch())
            self._ask_for_epoch(Lookup(epoch=epoch))
        elif what == "timestamp":
            newest = len(self.env.facts.appends) + 1
            oldest = max(0, newest - random.choice([3, 10, newest]))
            timestamp = FIRST_TIMESTAMP_MS + random.randint(oldest, newest)
            self._ask_for_offset(timestamp, Lookup(timestamp=timestamp))
        else:
            self._ask_for_offset(LATEST if what == "latest" else EARLIEST, None)

    def _last_epoch(self) -> int:
        committed = self.env.facts.committed
        return committed[-1].epoch if committed else 0

    def _ask_for_offset(self, timestamp: int, lookup: Lookup | None) -> None:
        partition = ListOffsetsRequestPartition(partition_index=0, timestamp=timestamp)
        topic = ListOffsetsRequestTopic(name=TOPIC, partitions=(partition,))
        message = ListOffsetsRequest(replica_id=-1, topics=(topic,))

        def on_response(frame: bytes) -> None:
            api = LIST_OFFSETS, LIST_OFFSETS_VERSION
            found = self.decode_response(ListOffsetsResponse, *api, frame).topics[0].partitions[0]
            self._take(ErrorCode(found.error_code), found.offset, lookup)

        self._ask_with(LIST_OFFSETS, LIST_OFFSETS_VERSION, message, on_response)

    def _ask_for_epoch(self, lookup: Lookup) -> None:
        assert lookup.epoch is not None, "an epoch is looked up"
        partition = OffsetForLeaderEpochRequestPartition(partition=0, leader_epoch=lookup.epoch)
        topic = OffsetForLeaderEpochRequestTopic(topic=TOPIC, partitions=(partition,))
        message = OffsetForLeaderEpochRequest(replica_id=-1, topics=(topic,))

        def on_response(frame: bytes) -> None:
            api = EPOCH_END, EPOCH_END_VERSION
            response = self.decode_response(OffsetForLeaderEpochResponse, *api, frame)
            found = response.topics[0].partitions[0]
            self._take(ErrorCode(found.error_code), found.end_offset, lookup)

        self._ask_with(EPOCH_END, EPOCH_END_VERSION, message, on_response)

    def _ask_with(
        self,
        api_key: int,
        version: int,
        message: ListOffsetsRequest | OffsetForLeaderEpochRequest,
        on_response: Callable[[bytes], None],
    ) -> None:
        self.ask(api_key, version, message, on_response, self._on_failure, is_repeatable=True)

    def _take(self, error: ErrorCode, offset: int, lookup: Lookup | None) -> None:
        served = self.served
        assert served is not None, "a response was given by a node"
        self.env.coverage.count(f"asked for {self._what}", served.left.role, error.name)
        if error is ErrorCode.NONE:
            self._judge(served, offset, lookup)
        elif self.random.random() < 0.7:
            leader = self.cluster.leader_machine()
            self.change_target(-1 if leader is None else leader.id)
        self._next()

    def _judge(self, served: Served, offset: int, lookup: Lookup | None) -> None:
        observer = self.env.observer
        observer.on_served(self.name, served, offset if self._what == "latest" else None)
        if lookup is None:
            return
        if lookup.epoch is not None and lookup.epoch > served.left.epoch:
            return
        observer.on_looked_up(self.name, served, lookup, offset)

    def _on_failure(self) -> None:
        self.change_target()
        self._next()
