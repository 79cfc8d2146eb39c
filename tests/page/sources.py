"""A node for the page to show, without a node: the test says what it is and what its leader answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from quorumd.server.model.metrics import Metrics
from quorumd.server.model.partition_view import SnapshotWork
from quorumd.server.page.source import PageSource
from quorumd.wire.codec import encode
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumResponse,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseReplica,
    DescribeQuorumResponseTopic,
)
from quorumd.wire.schema import Message
from tests.support.cluster import FixedView

NOW_MS = 1_700_000_000_000


def replica(
    node: int,
    *,
    end: int = 100,
    fetched_ms: int = 0,
    caught_up_ms: int = 0,
    uuid: UUID | None = None,
) -> DescribeQuorumResponseReplica:
    """Times are ms before the leader's now; -1 is never."""
    return DescribeQuorumResponseReplica(
        replica_id=node,
        replica_directory_id=uuid or UUID(int=1000 + node),
        log_end_offset=end,
        last_fetch_timestamp=-1 if fetched_ms < 0 else NOW_MS - fetched_ms,
        last_caught_up_timestamp=-1 if caught_up_ms < 0 else NOW_MS - caught_up_ms,
    )


def described(*voters: DescribeQuorumResponseReplica, **changes: Any) -> DescribeQuorumResponse:
    """The answer of node 2, which leads in epoch 7."""
    values = {
        "error_message": "",
        "leader_id": 2,
        "leader_epoch": 7,
        "high_watermark": 100,
        "current_voters": voters,
    }
    partition = DescribeQuorumResponsePartition(**{**values, **changes})
    topic = DescribeQuorumResponseTopic(topic_name="__cluster_metadata", partitions=(partition,))
    return DescribeQuorumResponse(error_message="", topics=(topic,))


@dataclass(slots=True)
class FakeLeader:
    """Answers at once; with None for an answer, when the test calls `answer` or `fail`."""

    says: DescribeQuorumResponse | bytes | str | None = None
    asked: list[int] = field(default_factory=list)
    waiting: list[tuple[Callable[[bytes, int], None], Callable[[str], None]]] = field(
        default_factory=list
    )

    def ask(
        self,
        message: Message,
        version: int,
        answered: Callable[[bytes, int], None],
        failed: Callable[[str], None],
    ) -> None:
        assert message.wire_spec.api_key == 55
        self.asked.append(version)
        self.waiting.append((answered, failed))
        if self.says is not None:
            self.answer(self.says)

    def answer(self, says: DescribeQuorumResponse | bytes | str) -> None:
        """A message, bytes in the place of one, or why there is no answer."""
        answered, failed = self.waiting.pop(0)
        if isinstance(says, str):
            failed(says)
        else:
            answered(says if isinstance(says, bytes) else encode(says, 2), 0)


def status_of(view: FixedView, **changes: object) -> dict[str, object]:
    """As much of /status as the page reads."""
    return {
        "node_id": view.local.id,
        "version": "1.2.3",
        "pid": 4711,
        "storage_dir": "/var/lib/quorumd",
        "storage_id": "AAAA",
        "cluster_id": view.cluster_id,
        "role": view.role,
        "epoch": view.leader_epoch,
        "leader_id": view.leader_id,
        "role_since_s": 12.5,
        "log_start_offset": view.log_start_offset,
        "log_end_offset": view.log_end_offset,
        "high_watermark": view.high_watermark,
        "last_report": "",
        "snapshots": {
            "newest": None,
            "count": 0,
            "new_bytes": 5,
            "problem": "",
            "building": None,
            "copying": None,
        },
        **changes,
    }


def source_for(
    view: FixedView,
    leader: FakeLeader | None = None,
    *,
    status: Mapping[str, object] | None = None,
    metrics: Metrics | None = None,
    **changes: Any,
) -> PageSource:
    values: dict[str, Any] = {
        "leader_id": lambda: view.leader_id,
        "problems": list,
        "warnings": list,
        "snapshot_problem": str,
        "unreachable": set,
        "snapshot_work": lambda: SnapshotWork({}),
        "snapshot_path": lambda: None,
        "log_bytes": lambda: 4096,
        "storage_dir": Path("/"),
        "claims_withheld": "",
        "segment_bytes": 1,
        "fetch_timeout_ms": 2000,
        **changes,
    }
    return PageSource(
        view=view,
        metrics=metrics or Metrics(),
        status=lambda: dict(status or status_of(view)),
        ask_leader=(leader or FakeLeader()).ask,
        **values,
    )
