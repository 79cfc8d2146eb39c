"""One process of a simulated node, from its start to its end: the daemon's code, simulated surroundings.

Everything but sockets, threads and HTTP is the real thing: directory, log and recovery on a simulated
disk, the rules, the driver, the recorder, producers and consumers, and the bytes of every message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from quorumd.config.addresses import Listener
from quorumd.raft.types import Address, ReplicaKey, SnapshotId
from quorumd.server.dispatch import Dispatch
from quorumd.server.model.disk_jobs import DiskListener, Files
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.peer_calls import PeerListener
from quorumd.server.model.runtime import Runtime
from quorumd.server.model.topic import METADATA
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.node import open_partition
from quorumd.server.partition.partition import Partition
from quorumd.server.translate.common import uuid_or_none
from quorumd.server.translate.voter_changes import ADD_VOTER, REMOVE_VOTER
from quorumd.storage.directory import open_directory
from quorumd.storage.errors import StorageError
from quorumd.storage.layout import part_path, partition_directory, snapshot_path
from quorumd.wire.codec import decode
from quorumd.wire.headers import decode_request_header, decode_response_header
from quorumd.wire.messages.add_raft_voter import AddRaftVoterRequest
from quorumd.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from quorumd.wire.messages.vote import VoteRequest, VoteResponse
from simulation.history.voter_change_requests import VoterChangeKind
from simulation.machines.disk import ProcessKilled
from simulation.machines.links import Channel, Reply, SimPeerChannel, SimRequest
from simulation.machines.threads import SimBuild, SimDiskThread, SimReader
from simulation.scheduler import SECOND, Callback, Timer
from simulation.violation import ProcessEnded, Violation

if TYPE_CHECKING:
    from simulation.machines.machine import Machine

VOTE = 52
STORAGE = Path("/data")
LOG_DIRECTORY = partition_directory(STORAGE)


class NodeProcess:
    """See the module's docstring. Constructing it opens the directory and starts the partition.

    Raises StorageError if the daemon would refuse to start, ProcessKilled if it is killed on the way.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.scheduler = machine.world.scheduler
        self.host = machine.host
        self.replica = machine.replica
        self.listener: Listener = machine.config.listeners[0]
        self.is_alive = True
        self.links_here: list[SimPeerChannel] = []
        """Links of others that end here."""
        self.last_message = "start"
        self.last_report = ""
        self.shown: set[tuple[int, int]] = set()
        """Snapshots that checkers have seen."""
        self.effects_left: int | None = None
        """After so many things that leave the event loop, the process is killed."""
        self.began_us = self.scheduler.now_us
        metrics = Metrics(self._monotonic_s)
        world = machine.world
        directory = open_directory(machine.disk, STORAGE, node_id=machine.id)
        self.directory = directory
        self.partition: Partition = open_partition(
            METADATA,
            machine.config,
            machine.disk,
            directory,
            metrics,
            self._fail,
            self._make_host(),
        )
        world.on_opened(self, directory.load_quorum_state())
        self.dispatch = Dispatch([self.partition], metrics)

    @property
    def key(self) -> ReplicaKey:
        return self.replica.key

    def _make_host(self) -> Runtime:
        machine, world = self.machine, self.machine.world

        def disk(files: Files, listener: DiskListener) -> SimDiskThread:
            return SimDiskThread(self, files, listener)

        def link(
            name: str,
            addresses: Callable[[], Sequence[Address]],
            client_id: str,
            software_version: str,
            listener: PeerListener,
            connect_timeout_ms: int,
            metrics: Metrics,
        ) -> SimPeerChannel:
            return SimPeerChannel(
                self, world.network, world.address_map, addresses, listener, connect_timeout_ms
            )

        return Runtime(
            monotonic_s=self._monotonic_s,
            monotonic_ms=lambda: machine.clock.monotonic_us() // 1000,
            wall_ms=lambda: machine.clock.wall_us() // 1000,
            draw=machine.random.randrange,
            call_soon=lambda callback: self.call(machine.turn_us(), callback),
            call_at=self._call_at,
            disk=disk,
            reader=lambda log: SimReader(self, log),
            link=link,
            build=partial(SimBuild, self),
        )

    def _monotonic_s(self) -> float:
        return self.machine.clock.monotonic_us() / SECOND

    def _call_at(self, at_s: float, callback: Callback) -> Timer:
        clock = self.machine.clock
        # At least a little later: an alarm that was rounded down would be set again for ever.
        return self.call(
            max(1, clock.real_us(ceil(at_s * SECOND) - clock.monotonic_us())), callback
        )

    def snapshot_bytes(self, snapshot: SnapshotId) -> bytes:
        """Of a complete snapshot, or of one that is about to become one."""
        disk = self.machine.disk
        complete = snapshot_path(LOG_DIRECTORY, snapshot)
        is_there = complete.name in disk.names(LOG_DIRECTORY)
        return disk.contents(complete if is_there else part_path(LOG_DIRECTORY, snapshot))

    def take_snapshot(self) -> None:
        """As an operator asks for it; nobody waits for the answer."""
        self.partition.snapshots.take(lambda outcome: None)

    # -- events

    def call(self, delay_us: int, callback: Callback) -> Timer:
        """Have something happen in this process after a while, if it still lives then."""
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
            self.machine.world.look(self, is_cut_short=True)
            self.machine.end_process("killed", power=None)
        except ProcessEnded:
            self.machine.world.look(self, is_cut_short=True)
            self.machine.end_process("ended by itself")
        else:
            self.machine.world.look(self)

    def on_effect(self) -> None:
        """Something is about to leave the event loop: to the disk, to a peer, to whoever asked."""
        if self.effects_left is not None:
            self.effects_left -= 1
            if self.effects_left < 0:
                self.machine.count("crash at an effect")
                raise ProcessKilled

    def receive(
        self, frame: bytes, channel: Channel, kind: str, reply: Reply, reset: Callback
    ) -> None:
        """A request has arrived; `frame` has no length in front."""
        if not self.is_alive:
            reset()
            return

        def handle() -> None:
            self.last_message = kind
            received_ns = self.machine.clock.monotonic_us() * 1000
            self.machine.world.note(self.host, "gets", kind, frame)
            self.machine.world.note_contact(self, channel.replica, kind)
            self.dispatch.dispatch(SimRequest(self, channel, frame, received_ns, reply, reset))

        self.run(handle)

    def receive_on(self, link: SimPeerChannel, kind: str, frame: bytes) -> None:
        """An answer has arrived on a link."""

        def handle() -> None:
            self.last_message = kind
            self.machine.world.note(self.host, "gets", kind, frame)
            link.on_answer(frame)

        self.run(handle)

    def on_request(self, api_key: int, version: int, frame: bytes) -> None:
        """A request leaves: a candidate's own vote is told by its request."""
        if api_key in (ADD_VOTER, REMOVE_VOTER):
            self._note_own_request(api_key, version, frame)
        elif api_key == VOTE:
            _, at = decode_request_header(frame[4:])
            asked = decode(VoteRequest, version, frame[4:], at).topics[0].partitions[0]
            if not asked.pre_vote:
                self.machine.world.on_vote(self.key, asked.replica_epoch, self.key)

    def _note_own_request(self, api_key: int, version: int, frame: bytes) -> None:
        """What an operator wants is passed on as it came, with a time limit and to be committed."""
        _, at = decode_request_header(frame[4:])
        if api_key == ADD_VOTER:
            adding = decode(AddRaftVoterRequest, version, frame[4:], at)
            key = ReplicaKey(adding.voter_id, uuid_or_none(adding.voter_directory_id))
            if not adding.ack_when_committed:
                self.machine.world.on_own_request(self, VoterChangeKind.ADD, key)
        else:
            removing = decode(RemoveRaftVoterRequest, version, frame[4:], at)
            key = ReplicaKey(removing.voter_id, uuid_or_none(removing.voter_directory_id))
            if removing.timeout_ms < 0:
                self.machine.world.on_own_request(self, VoterChangeKind.REMOVE, key)

    def on_response(self, request: InboundRequest, frame: bytes) -> None:
        """An answer leaves: what it tells must be true already."""
        if request.api_key == VOTE:
            _, at = decode_response_header(VOTE, request.api_version, frame[4:])
            topics = decode(VoteResponse, request.api_version, frame[4:], at).topics
            message = decode(VoteRequest, request.api_version, request.frame, request.body_at)
            asked = message.topics[0].partitions[0]
            if topics and topics[0].partitions[0].vote_granted and not asked.pre_vote:
                candidate = ReplicaKey(asked.replica_id, asked.replica_directory_id)
                self.machine.world.on_vote(self.key, asked.replica_epoch, candidate)

    # -- the end

    def _fail(self, reason: str, error: BaseException | None) -> None:
        """The daemon ends its process: rightly, if its disk has failed it."""
        if isinstance(error, (ProcessKilled, ProcessEnded)):
            raise error
        if isinstance(error, Violation):
            raise error
        if isinstance(error, StorageError):
            self.machine.on_storage_error(error)
        elif error is not None:
            raise Violation("no rule is broken", f"{self.key}: {error!r}") from error
        else:
            self.machine.on_halt(reason)
        raise ProcessEnded

    def end(self) -> None:
        """Nothing happens in this process any more; those connected to it hear of it, as a rule."""
        self.is_alive = False
        links, self.links_here = self.links_here, []
        for link in links:
            link.peer_died()
