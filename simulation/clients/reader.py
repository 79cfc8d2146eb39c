"""Readers: each follows the committed log from offset 0.

Half of them send the epoch of the last record that they have read, as some clients do (KIP-320).
"""

from __future__ import annotations

from random import Random

from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
)
from quorumd.wire.metadata_topic import TOPIC
from simulation.checkers.reads import NAME
from simulation.clients.client import FETCH, Client
from simulation.cluster import Cluster
from simulation.history.replica import Batch, batches_of
from simulation.scheduler import MS, SECOND
from simulation.violation import Violation

FETCH_VERSION = 12


class Reader(Client):
    """See the module's docstring."""

    def __init__(self, cluster: Cluster, name: str, random: Random) -> None:
        super().__init__(cluster, name, random)
        self.offset = 0
        self.tells_epoch = random.random() < 0.5
        self.last_epoch = -1

    def start(self) -> None:
        self._fetch()

    def _fetch(self) -> None:
        if self.is_stopping:
            return
        partition = FetchRequestPartition(
            partition=0,
            fetch_offset=self.offset,
            last_fetched_epoch=self.last_epoch,
            partition_max_bytes=1 << 20,
        )
        message = FetchRequest(
            max_wait_ms=self.random.choice([0, 200, 500]),
            min_bytes=1,
            max_bytes=1 << 20,
            topics=(FetchRequestTopic(topic=TOPIC, partitions=(partition,)),),
        )
        self.ask(
            FETCH, FETCH_VERSION, message, self._on_response, self._on_failure, is_repeatable=True
        )

    def _on_response(self, frame: bytes) -> None:
        response = self.decode_response(FetchResponse, FETCH, FETCH_VERSION, frame)
        found, served = response.responses[0].partitions[0], self.served
        assert served is not None, "a response was given by a node"
        if found.error_code != ErrorCode.NONE:
            if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.env.observer.on_out_of_range(self.name, served, self.offset)
                # The records it would have read are behind a snapshot now; or this node knows less yet.
                self.offset = max(self.offset, served.left.start_offset)
                self.last_epoch = -1
            self.change_target(found.current_leader.leader_id)
            self.later(self.random.randrange(20 * MS, 200 * MS), self._fetch)
            return
        if found.high_watermark >= 0:
            self.env.observer.on_served(self.name, served, found.high_watermark)
        if found.diverging_epoch.end_offset >= 0:
            raise Violation(
                NAME,
                f"{self.name} has read up to {self.offset} in epoch {self.last_epoch}, and gets that"
                f" epoch {found.diverging_epoch.epoch} ends at {found.diverging_epoch.end_offset}",
            )
        batches: list[Batch] = batches_of(found.records or b"")
        if batches:
            if self.tells_epoch:
                self.last_epoch = batches[-1].epoch
            self.env.observer.on_read(self.name, self.offset, batches)
            self.offset = batches[-1].end_offset
        self.later(self.random.randrange(50 * MS, SECOND // 2), self._fetch)

    def _on_failure(self) -> None:
        self.change_target()
        self._fetch()
