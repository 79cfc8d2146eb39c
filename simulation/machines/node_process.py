"""One process of a simulated node, from its start to its end: the daemon's code, simulated surroundings.

Everything but sockets, threads and HTTP is the real thing: directory, log and recovery on a simulated
disk, the rules, the driver, the storage adapter, producers and consumers, and the bytes of every message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from pathlib import Path

from quorumd.raft.node import RaftNode
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
from quorumd.server.translate.voter_changes import ADD_VOTER, REMOVE_VOTER, TRANSFER
from quorumd.storage.directory import open_directory
from quorumd.storage.errors import StorageError
from quorumd.storage.layout import LOG_SUFFIX, part_path, partition_directory, snapshot_path
from quorumd.storage.quorum_state import QuorumState, load_quorum_state
from quorumd.wire.codec import decode
from quorumd.wire.headers import decode_request_header, decode_response_header
from quorumd.wire.messages.add_raft_voter import AddRaftVoterRequest
from quorumd.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from quorumd.wire.messages.transfer_leader import TransferLeaderRequest, TransferLeaderResponse
from quorumd.wire.messages.vote import VoteRequest, VoteResponse
from simulation.history.replica import Batch, Replica, batch_of
from simulation.history.voter_change_requests import VoterChangeKind
from simulation.machines.channel import Channel, Reply
from simulation.machines.disk import ProcessKilled
from simulation.machines.hardware import Hardware
from simulation.machines.peer_channel import Endpoints, SimPeerChannel
from simulation.machines.process import Process
from simulation.machines.requests import sim_request
from simulation.machines.threads import SimBuild, SimDiskThread, SimReader
from simulation.scheduler import SECOND, Callback, Timer
from simulation.violation import ProcessEnded, Violation

VOTE = 52
STORAGE = Path("/data")
LOG_DIRECTORY = partition_directory(STORAGE)


class NodeProcess(Process):
    """See the module's docstring. Constructing it opens the directory and starts the partition.

    Raises StorageError if the daemon would refuse to start, ProcessKilled if it is killed on the way,
    ProcessEnded if it is kept out because its directory has lost data.
    """

    def __init__(self, machine: Hardware, replica: Replica, endpoints: Endpoints) -> None:
        super().__init__(machine, replica)
        self._endpoints = endpoints
        self.last_report = ""
        self.env.facts.heard.pop(replica.key, None)
        self.shown_snapshots: set[tuple[int, int]] = set()
        metrics = Metrics(self._monotonic_s)
        self.directory = open_directory(machine.disk, STORAGE, node_id=machine.id)
        self.partition: Partition = open_partition(
            METADATA,
            machine.config,
            machine.disk,
            self.directory,
            metrics,
            self._fail,
            self._make_runtime(),
        )
        self._recovered(load_quorum_state(machine.disk, self.directory.log_directory))
        self.dispatch = Dispatch(self.partition, metrics)

    def _recovered(self, state: QuorumState | None) -> None:
        """The log is open: show what was found. A damaged directory that has lost data is kept out."""
        machine, replica, observer = self.machine, self.replica, self.env.observer
        if not observer.is_watching:
            return
        log = self.partition.log
        found = self.env.facts.committed_below(log.log_start_offset)
        found += (batch_of(header) for header in log.scan_headers())
        if machine.is_damaged and not _is_whole(replica, found, state, self.node.local):
            machine.note("has lost data, and is kept out")
            machine.is_wanted = False
            raise ProcessEnded
        observer.on_recovered(replica, found, state)
        unsynced = [path for path in machine.disk.unsynced_files() if path.suffix == LOG_SUFFIX]
        if unsynced:
            raise Violation(
                "what was synced survives",
                f"{replica.key} counts {unsynced[0]}, and has not synced it",
            )
        replica.recovered(found)
        if state is not None:
            replica.state = state
        observer.show_disk_updates(replica)

    def _make_runtime(self) -> Runtime:
        machine = self.machine

        def disk(files: Files, listener: DiskListener) -> SimDiskThread:
            return SimDiskThread(self, files, listener, self._monotonic_s)

        def peer_channel(
            name: str,
            addresses: Callable[[], Sequence[Address]],
            client_id: str,
            software_version: str,
            listener: PeerListener,
            connect_timeout_ms: int,
            metrics: Metrics,
        ) -> SimPeerChannel:
            return SimPeerChannel(
                self, self.env.network, self._endpoints, addresses, listener, connect_timeout_ms
            )

        return Runtime(
            monotonic_s=self._monotonic_s,
            monotonic_ms=lambda: machine.clock.monotonic_us() // 1000,
            wall_ms=lambda: machine.clock.wall_us() // 1000,
            draw=machine.random.randrange,
            call_soon=lambda callback: self.call(machine.turn_us(), callback),
            call_at=self._call_at,
            disk=disk,
            reader=lambda log, on_damage: SimReader(self, log, on_damage),
            peer_channel=peer_channel,
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
        """As an operator asks for it; no client waits for the response."""
        self.partition.snapshots.take(lambda outcome: None)

    # -- what checkers see

    @property
    def node(self) -> RaftNode:
        return self.partition.node

    @property
    def role(self) -> str:
        return str(self.node.role)

    @property
    def following(self) -> tuple[int, ReplicaKey | None]:
        return self.node.epoch, self.node.leader

    def leads(self, epoch: int, leader: ReplicaKey | None) -> bool:
        node = self.node
        return node.is_leader and node.epoch == epoch and leader in (None, node.local)

    @property
    def is_prompt(self) -> bool:
        return self.machine.is_prompt

    @property
    def report(self) -> str:
        return self.partition.health.last_report

    @property
    def is_clock_true(self) -> bool:
        return self.machine.clock.is_true

    def log_files(self) -> list[str]:
        return self.machine.disk.names(LOG_DIRECTORY)

    def after_event(self, *, is_cut_short: bool = False) -> None:
        self.env.observer.observe(self, is_cut_short=is_cut_short)

    # -- messages

    def on_peer_connected(self, replica_id: int) -> None:
        addresses = self.partition.outbound.addresses
        if addresses.is_voter_or_leader(replica_id):
            addresses.on_peer_connected(replica_id)

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
            self.env.trace.note(self.host, "gets", kind, frame)
            self.env.observer.on_contact(self, channel.replica, kind)
            request = sim_request(self, channel, frame, received_ns, reply, reset)
            for _ in self.dispatch.dispatch(request) or ():
                pass  # a simulated turn takes no time

        self.run(handle)

    def on_request(self, api_key: int, version: int, frame: bytes) -> None:
        """A request leaves: a candidate's own vote is implied by its request."""
        if api_key in (ADD_VOTER, REMOVE_VOTER):
            self._note_own_request(api_key, version, frame)
        elif api_key == VOTE:
            _, at = decode_request_header(frame[4:])
            asked = decode(VoteRequest, version, frame[4:], at).topics[0].partitions[0]
            if not asked.pre_vote:
                self.env.observer.on_vote(self.key, asked.replica_epoch, self.key)

    def _note_own_request(self, api_key: int, version: int, frame: bytes) -> None:
        """Notes a request of the node itself; one of an operator, passed on, has a time limit."""
        _, at = decode_request_header(frame[4:])
        if api_key == ADD_VOTER:
            adding = decode(AddRaftVoterRequest, version, frame[4:], at)
            key = ReplicaKey(adding.voter_id, uuid_or_none(adding.voter_directory_id))
            if not adding.ack_when_committed:
                self.env.observer.on_own_request(self, VoterChangeKind.ADD, key)
        else:
            removing = decode(RemoveRaftVoterRequest, version, frame[4:], at)
            key = ReplicaKey(removing.voter_id, uuid_or_none(removing.voter_directory_id))
            if removing.timeout_ms < 0:
                self.env.observer.on_own_request(self, VoterChangeKind.REMOVE, key)

    def on_response(self, request: InboundRequest, arrived_us: int, frame: bytes) -> None:
        """A response leaves: what it says must be true already."""
        version, observer = request.api_version, self.env.observer
        if request.api_key == VOTE:
            _, at = decode_response_header(VOTE, version, frame[4:])
            topics = decode(VoteResponse, version, frame[4:], at).topics
            message = decode(VoteRequest, version, request.frame, request.body_at)
            asked = message.topics[0].partitions[0]
            if not topics or not topics[0].partitions[0].vote_granted:
                return
            if asked.pre_vote:
                observer.on_pre_vote(self, arrived_us)
            else:
                candidate = ReplicaKey(asked.replica_id, asked.replica_directory_id)
                observer.on_vote(self.key, asked.replica_epoch, candidate)
        elif request.api_key == TRANSFER:
            _, at = decode_response_header(TRANSFER, version, frame[4:])
            transfer = decode(TransferLeaderRequest, version, request.frame, request.body_at)
            to = ReplicaKey(transfer.to_id, uuid_or_none(transfer.to_directory_id))
            is_refused = decode(TransferLeaderResponse, version, frame[4:], at).error_code
            if not is_refused and not to.matches(self.key):  # itself: it led when it was asked
                observer.on_handed_over(self)

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


def _is_whole(
    replica: Replica, found: list[Batch], state: QuorumState | None, local: ReplicaKey
) -> bool:
    """True if a damaged directory still holds all that it must."""
    possible: list[QuorumState | None] = [replica.state, *replica.pending_states]
    return (
        local == replica.key
        and found[: len(replica.synced)] == replica.synced
        and (replica.state is None or state in possible)
    )
