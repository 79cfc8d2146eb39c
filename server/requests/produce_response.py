"""The response to a Produce request in its general form, errors and the leader's address included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from quorumd.server.model.metrics import Metrics
from quorumd.server.model.partition_view import PartitionView
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.requests.pending_produce import PartitionResult, PendingBatch, Results
from quorumd.server.translate.common import endpoint_on
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.fast import ProduceHead
from quorumd.wire.messages.produce import (
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponseCurrentLeader,
    ProduceResponseNodeEndpoint,
    ProduceResponsePartition,
    ProduceResponseRecordError,
    ProduceResponseTopic,
)

LEADER_SINCE: Final = 10
"""The first version whose responses name the leader."""


def topic_of(head: ProduceHead, version: int) -> ProduceRequestTopic:
    """The one topic of a request in its general form, without its records."""
    partitions = (ProduceRequestPartition(index=head.partition),)
    if version >= 13:
        return ProduceRequestTopic(topic_id=UUID(bytes=head.topic), partition_data=partitions)
    return ProduceRequestTopic(name=head.topic.decode(errors="replace"), partition_data=partitions)


def produce_response(
    view: PartitionView,
    version: int,
    listener: str,
    topics: Sequence[ProduceRequestTopic],
    results: Results,
) -> ProduceResponse:
    """There is a result for every partition of these topics; `listener` is that of the request."""
    responses = tuple(
        ProduceResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=tuple(
                _partition_response(view, version, partition.index, results[i, k])
                for k, partition in enumerate(topic.partition_data)
            ),
        )
        for i, topic in enumerate(topics)
    )
    nodes: tuple[ProduceResponseNodeEndpoint, ...] = ()
    if any(result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER for result in results.values()):
        nodes = _leader_endpoints(view, version, listener)
    return ProduceResponse(responses=responses, node_endpoints=nodes)


def _partition_response(
    view: PartitionView, version: int, index: int, result: PartitionResult
) -> ProduceResponsePartition:
    current = ProduceResponseCurrentLeader()
    is_elsewhere = result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= LEADER_SINCE
    # An epoch alone says nothing to a client: librdkafka warns of each such response.
    if is_elsewhere and view.leader_id is not None:
        current = ProduceResponseCurrentLeader(
            leader_id=view.leader_id, leader_epoch=view.leader_epoch
        )
    record_errors: tuple[ProduceResponseRecordError, ...] = ()
    if result.record_index is not None:
        record_errors = (
            ProduceResponseRecordError(
                batch_index=result.record_index, batch_index_error_message=result.message
            ),
        )
    ok = result.error is ErrorCode.NONE
    return ProduceResponsePartition(
        index=index,
        error_code=int(result.error),
        base_offset=result.base_offset,
        log_start_offset=view.log_start_offset if ok else -1,
        record_errors=record_errors,
        error_message=result.message,
        current_leader=current,
    )


def _leader_endpoints(
    view: PartitionView, version: int, listener: str
) -> tuple[ProduceResponseNodeEndpoint, ...]:
    leader_id = view.leader_id
    if leader_id is None or version < LEADER_SINCE:
        return ()
    at = endpoint_on(view.leader_endpoints, listener)
    if at is None:
        return ()
    return (ProduceResponseNodeEndpoint(node_id=leader_id, host=at.host, port=at.port),)


class ProduceResponder:
    """Sends the responses of Produce requests in their general form."""

    def __init__(self, view: PartitionView, metrics: Metrics) -> None:
        self._view = view
        self._metrics = metrics

    def finish(self, batch: PendingBatch, result: PartitionResult) -> None:
        """Set the result of a batch, and respond if it was the last of its request."""
        request, whole = batch.request, batch.whole
        batch.has_response = True
        if whole is None:
            topic = topic_of(batch.head, request.api_version)
            self.respond(request, batch.head.acks, (topic,), {(0, 0): result})
            return
        whole.results[batch.at] = result
        whole.partitions_left -= 1
        if not whole.partitions_left:
            self.respond(request, whole.acks, whole.topics, whole.results)

    def respond(
        self,
        request: InboundRequest,
        acks: int,
        topics: tuple[ProduceRequestTopic, ...],
        results: Results,
    ) -> None:
        """Respond in the general form; acks=0 gets no response, and errors close its connection."""
        errors = {result.error for result in results.values()} - {ErrorCode.NONE}
        for error in errors:
            self._metrics.count_refused(error.name)
        if acks == 0:
            if errors:
                names = ", ".join(sorted(error.name for error in errors))
                request.close(f"a batch without acknowledgement was refused: {names}")
            else:
                request.finish_without_response()
            return
        response = produce_response(
            self._view, request.api_version, request.listener.name, topics, results
        )
        request.respond_message(response)
