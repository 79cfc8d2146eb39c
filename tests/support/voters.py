"""Changing the voters of a live quorum by the requests themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from quorumd.raft.types import uuid_from_text
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.add_raft_voter import (
    AddRaftVoterRequest,
    AddRaftVoterRequestListener,
    AddRaftVoterResponse,
)
from quorumd.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from tests.support.live_cluster import Cluster
from tests.support.raw_client import RawClient

TIMEOUT_MS = 15_000


class Answer(Protocol):
    @property
    def error_code(self) -> int: ...
    @property
    def error_message(self) -> str | None: ...


A = TypeVar("A", bound=Answer)


def ask_leader(cluster: Cluster, ask: Callable[[RawClient], A]) -> A:
    """Ask whoever leads, and again when it does not any more."""

    def answer() -> A | None:
        with RawClient(cluster.port(cluster.wait_leader()), timeout_s=30) as client:
            found = ask(client)
        return None if found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER else found

    return cluster.wait_for(answer, "an answer of the leader")


def add_voter(
    cluster: Cluster, node: int, storage_id: str | None = None, timeout_ms: int = TIMEOUT_MS
) -> AddRaftVoterResponse:
    """By default the storage id that the node has now."""
    request = AddRaftVoterRequest(
        timeout_ms=timeout_ms,
        voter_id=node,
        voter_directory_id=uuid_from_text(storage_id or cluster.status(node)["storage_id"]),
        listeners=(
            AddRaftVoterRequestListener(
                name="CONTROLLER", host="127.0.0.1", port=cluster.port(node)
            ),
        ),
    )
    return ask_leader(cluster, lambda client: client.ask(80, 1, request, AddRaftVoterResponse))


def remove_voter(cluster: Cluster, node: int, storage_id: str) -> RemoveRaftVoterResponse:
    request = RemoveRaftVoterRequest(
        voter_id=node, voter_directory_id=uuid_from_text(storage_id), timeout_ms=TIMEOUT_MS
    )
    return ask_leader(cluster, lambda client: client.ask(81, 0, request, RemoveRaftVoterResponse))


def voters_of(cluster: Cluster, node: int) -> dict[str, int]:
    """Storage ids and ids of the voters, as this node knows them."""
    return {voter["storage_id"]: voter["id"] for voter in cluster.status(node)["voters"]}
