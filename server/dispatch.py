"""From a request to its handler, by api key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from quorumd.server.model.metrics import Metrics
from quorumd.server.net.inbound_request import InboundRequest, Steps
from quorumd.server.partition.partition import Partition
from quorumd.server.peers.peer_channel import NODE_SOFTWARE
from quorumd.server.requests.api_versions import (
    OWN_SOFTWARE,
    api_versions,
    api_versions_unsupported,
)
from quorumd.server.requests.describe_configs import describe_configs
from quorumd.server.requests.describe_log_dirs import describe_log_dirs
from quorumd.server.requests.describe_quorum import describe_quorum, for_any_client
from quorumd.server.requests.fetch import is_of_replica
from quorumd.server.requests.find_coordinator import find_coordinator
from quorumd.server.requests.init_producer_id import init_producer_id
from quorumd.server.requests.list_partition_reassignments import list_partition_reassignments
from quorumd.server.requests.metadata import describe_cluster, metadata
from quorumd.server.requests.raft_gate import RaftGate
from quorumd.server.requests.refusal import not_controller, refusal, too_large
from quorumd.server.requests.update_features import update_features
from quorumd.wire.codec import decode, encode
from quorumd.wire.errors import LimitExceeded, MalformedMessage
from quorumd.wire.fast import FastFetch, parse_fetch_request, replica_id_of
from quorumd.wire.messages.api_versions import ApiVersionsRequest
from quorumd.wire.messages.describe_cluster import DescribeClusterRequest
from quorumd.wire.messages.describe_configs import DescribeConfigsRequest
from quorumd.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
)
from quorumd.wire.messages.fetch import FetchRequest
from quorumd.wire.messages.find_coordinator import FindCoordinatorRequest
from quorumd.wire.messages.init_producer_id import InitProducerIdRequest
from quorumd.wire.messages.list_offsets import ListOffsetsRequest
from quorumd.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from quorumd.wire.messages.metadata import MetadataRequest
from quorumd.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from quorumd.wire.messages.take_snapshot import TakeSnapshotRequest
from quorumd.wire.messages.update_features import UpdateFeaturesRequest
from quorumd.wire.registry import API_VERSIONS_KEY, APIS, CONTROLLER_KEYS

CHANGE_WAIT_MS: Final = 300_000
"""Time that a node waits for the leader's response to a change of the voters, for a client that may give up
before."""


class Dispatch:
    """Takes every request of a node. Handlers check the topic and partition that a request names."""

    def __init__(
        self,
        partition: Partition,
        metrics: Metrics,
        gate: RaftGate | None = None,
        *,
        peers_in_plaintext: bool = False,
    ) -> None:
        """`gate` judges raft requests; None: all count. `peers_in_plaintext` is announced to
        other nodes: this one has a TLS listener, but its links are plaintext."""
        self._gate = gate
        self._peers_in_plaintext = peers_in_plaintext
        self._partition = partition
        self._metrics = metrics
        self._handlers: dict[int, Callable[[InboundRequest], Steps | None]] = {
            0: partition.produce_handler.handle,
            1: self._on_fetch,
            2: self._on_list_offsets,
            3: self._on_metadata,
            10: self._on_find_coordinator,
            18: self._on_api_versions,
            22: self._on_init_producer_id,
            23: self._on_offset_for_leader_epoch,
            32: self._on_describe_configs,
            35: self._on_describe_log_dirs,
            45: self._on_alter_partition_reassignments,
            46: self._on_list_partition_reassignments,
            52: partition.raft_handler.election,
            53: partition.raft_handler.election,
            54: partition.raft_handler.election,
            55: self._on_describe_quorum,
            57: self._on_update_features,
            59: partition.raft_handler.fetch_snapshot,
            60: self._on_describe_cluster,
            80: self._on_add_or_remove_voter,
            81: self._on_add_or_remove_voter,
            82: self._on_change,
            20001: self._on_change,
            20002: self._on_take_snapshot,
            **dict.fromkeys(CONTROLLER_KEYS, self._on_controller_request),
        }

    def dispatch(self, request: InboundRequest) -> Steps | None:
        """Raises MalformedMessage if the request's bytes are none, LimitExceeded if they are too many."""
        try:
            if self._gate is not None and not self._gate.admits(request):
                return None
            return self._handlers[request.api_key](request)
        except LimitExceeded as error:
            response = refusal(request.api_key, request.api_version, str(error))
            if response is None:
                raise
            self._metrics.count_ignored("request beyond its limits")
            request.respond_message(response)
            return None
        except MalformedMessage:
            response = too_large(
                request.api_key, request.api_version, request.frame, request.body_at
            )
            if response is None:
                raise
            request.respond_message(response)
            return None

    # -- the log

    def _on_fetch(self, request: InboundRequest) -> None:
        version, message = request.api_version, None
        asked = parse_fetch_request(version, request.frame, request.body_at)
        if asked is None:
            message = decode(FetchRequest, version, request.frame, request.body_at)
            asked = FastFetch.from_message(message, version)
        if asked is not None and is_of_replica(
            asked.replica_id,
            asked.replica_directory_id,
            asked.last_fetched_epoch,
            asked.fetch_offset,
            asked.partition_max_bytes,
            asked.max_bytes,
        ):
            if self._gate is None or self._gate.admits_fetch(request, asked):
                self._partition.raft_handler.fetch(request, asked)
            return
        if message is None:
            message = decode(FetchRequest, version, request.frame, request.body_at)
        replica_id = replica_id_of(message, version)
        if any(
            is_of_replica(
                replica_id,
                partition.replica_directory_id,
                partition.last_fetched_epoch,
                partition.fetch_offset,
                partition.partition_max_bytes,
                message.max_bytes,
            )
            for topic in message.topics
            for partition in topic.partitions
        ):
            self._partition.raft_handler.refuse_fetch(request)
            return
        self._partition.catch_up()
        self._partition.fetch_handler.fetch(request, message)

    def _on_list_offsets(self, request: InboundRequest) -> None:
        message = decode(ListOffsetsRequest, request.api_version, request.frame, request.body_at)
        self._partition.catch_up()
        self._partition.offsets_handler.list_offsets(request, message)

    def _on_offset_for_leader_epoch(self, request: InboundRequest) -> None:
        version = request.api_version
        message = decode(OffsetForLeaderEpochRequest, version, request.frame, request.body_at)
        self._partition.catch_up()
        self._partition.offsets_handler.offset_for_leader_epoch(request, message)

    def _on_init_producer_id(self, request: InboundRequest) -> None:
        version = request.api_version
        message = decode(InitProducerIdRequest, version, request.frame, request.body_at)
        request.respond_message(init_producer_id(message))

    # -- the quorum

    def _on_describe_quorum(self, request: InboundRequest) -> None:
        """Only the leader knows; others forward clients' requests to it, but no other node's."""
        version = request.api_version
        message = decode(DescribeQuorumRequest, version, request.frame, request.body_at)
        view, listener = self._partition.view, request.listener.name
        software = request.connection.client_software_name
        is_own = software in (OWN_SOFTWARE, NODE_SOFTWARE)

        def respond_here() -> None:
            work = self._partition.snapshots.work()
            response = describe_quorum(view, message, version, listener, is_own, work)
            request.respond_message(response)

        def reshape(frame: bytes, body_at: int) -> bytes:
            try:
                response = decode(DescribeQuorumResponse, version, frame, body_at)
            except MalformedMessage:
                return frame[body_at:]  # its client has the say
            return encode(for_any_client(response), version)

        if view.is_leader or view.leader_id is None or software == NODE_SOFTWARE:
            respond_here()
        else:
            once = None if is_own else reshape
            self._partition.outbound.forward(request, respond_here, reshape=once)

    def _for_leader(self, request: InboundRequest, respond_here: Callable[[], None]) -> None:
        """Kafka's admin client sends these to any node, and expects the leader's response.

        Software of this project gets the leader's address instead, and asks the leader itself. So does any
        client beside Kafka, whose leader would judge the request by this node's certificate. A change to
        which the leader did not respond is not made here as well, though this node may lead meanwhile:
        its client may have given up, and another one may have requested the opposite.
        """
        view, software = self._partition.view, request.connection.client_software_name
        is_own = software in (OWN_SOFTWARE, NODE_SOFTWARE)
        if view.is_leader or view.leader_id is None or is_own or view.is_kafka_log:
            respond_here()
        else:
            self._partition.outbound.forward(
                request,
                respond_here,
                lost=lambda: self._partition.raft_handler.give_change_up(request),
                wait_ms=CHANGE_WAIT_MS,
            )

    def _on_take_snapshot(self, request: InboundRequest) -> None:
        message = decode(TakeSnapshotRequest, request.api_version, request.frame, request.body_at)
        self._partition.take_snapshot(message, request.respond_message)

    def _on_add_or_remove_voter(self, request: InboundRequest) -> None:
        # Read before it is forwarded: a malformed request closes its connection on every node.
        self._for_leader(request, self._partition.raft_handler.change(request))

    def _on_change(self, request: InboundRequest) -> None:
        self._partition.raft_handler.change(request)()

    def _on_alter_partition_reassignments(self, request: InboundRequest) -> None:
        self._for_leader(request, self._partition.raft_handler.reassign(request))

    # -- the cluster

    def _on_api_versions(self, request: InboundRequest) -> None:
        version = request.api_version
        spec = APIS[API_VERSIONS_KEY]
        if not spec.min_version <= version <= spec.max_version:
            request.respond_message(api_versions_unsupported(), version=0)
            return
        message = decode(ApiVersionsRequest, version, request.frame, request.body_at)
        response = api_versions(self._partition.view, message, version)
        if self._peers_in_plaintext and message.client_software_name == NODE_SOFTWARE:
            response = replace(response, peers_in_plaintext=True)
        if not response.error_code:
            request.connection.client_software_name = message.client_software_name
            request.connection.client_software_version = message.client_software_version
        request.respond_message(response)

    def _on_metadata(self, request: InboundRequest) -> None:
        version = request.api_version
        message = decode(MetadataRequest, version, request.frame, request.body_at)
        listener = request.listener.name
        response = metadata(self._partition.view, message, version, listener)
        request.respond_message(response)

    def _on_describe_cluster(self, request: InboundRequest) -> None:
        version = request.api_version
        message = decode(DescribeClusterRequest, version, request.frame, request.body_at)
        listener = request.listener.name
        request.respond_message(describe_cluster(self._partition.view, message, listener))

    def _on_describe_configs(self, request: InboundRequest) -> None:
        version = request.api_version
        message = decode(DescribeConfigsRequest, version, request.frame, request.body_at)
        request.respond_message(describe_configs(self._partition.view, message))

    def _on_describe_log_dirs(self, request: InboundRequest) -> None:
        version, log = request.api_version, self._partition.log
        message = decode(DescribeLogDirsRequest, version, request.frame, request.body_at)
        response = describe_log_dirs(
            message, str(log.directory.parent), self._partition.topic, log.size_bytes
        )
        request.respond_message(response)

    def _on_update_features(self, request: InboundRequest) -> None:
        version = request.api_version
        message = decode(UpdateFeaturesRequest, version, request.frame, request.body_at)
        request.respond_message(update_features(self._partition.view, message, version))

    def _on_controller_request(self, request: InboundRequest) -> None:
        """Of a Kafka broker, or controller, that took this node for the active controller."""
        request.respond_message(not_controller(request.api_key))

    def _on_find_coordinator(self, request: InboundRequest) -> None:
        version = request.api_version
        message = decode(FindCoordinatorRequest, version, request.frame, request.body_at)
        request.respond_message(find_coordinator(message, version))

    def _on_list_partition_reassignments(self, request: InboundRequest) -> None:
        version = request.api_version
        message = decode(ListPartitionReassignmentsRequest, version, request.frame, request.body_at)
        request.respond_message(list_partition_reassignments(self._partition.view, message))
