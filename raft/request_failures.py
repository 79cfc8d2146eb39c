"""A request to a peer got no valid response: it is sent again after a backoff.

Sources: KIP-595 (cluster bootstrapping, a foreign cluster), KIP-996 (a voter without pre-vote), KIP-580.
"""

from __future__ import annotations

from quorumd.raft import quorum
from quorumd.raft.campaign import on_pre_vote_unsupported, on_vote_failed
from quorumd.raft.core import Core
from quorumd.raft.effects import Fetch, FetchSnapshot, Halt, Peer, Vote
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import RequestFailed
from quorumd.raft.snapshot_download import abandon_download
from quorumd.raft.types import ReplicaKey


def on_request_failed(core: Core, event: RequestFailed) -> None:
    """No valid response: send the request again after a backoff."""
    request = core.take(event.request_id)
    if request is None:
        return
    core.back_off(request)
    if request.to == core.leader:
        core.known_leader.expected_until_ms = 0
    if isinstance(request.request, FetchSnapshot) and event.error is not None:
        # A Kafka leader says so that it has no such snapshot, or does not lead.
        abandon_download(core, f"{request.to} refuses: {event.reason}")
    if event.error == KafkaError.UNSUPPORTED_VERSION and isinstance(request.request, Vote):
        on_pre_vote_unsupported(core, request.to)
    elif isinstance(request.request, Vote):
        on_vote_failed(core)
    if event.error == KafkaError.INCONSISTENT_CLUSTER_ID and isinstance(request.request, Fetch):
        _note_foreign(core, request.to, event)


def _note_foreign(core: Core, to: Peer, event: RequestFailed) -> None:
    """At a configured address there is a replica of another cluster.

    Fatal only if a majority of the configured voters is of that cluster and names one leader, that leader
    itself among them, before this directory ever fetched: one packet must not end a node (KIP-595,
    cluster bootstrapping, step 1).
    """
    core.report(f"{to} belongs to another cluster than {core.cluster_id}")
    if not isinstance(to, ReplicaKey) or event.leader_id is None or core.log.end_offset > 0:
        return
    core.bootstrap.foreign_leader[to.id] = event.leader_id
    ids = core.config.configured_voters.ids
    naming = sum(core.bootstrap.foreign_leader.get(voter) == event.leader_id for voter in ids)
    if event.leader_id in core.bootstrap.foreign_leader and quorum.is_won(naming, len(ids)):
        core.effects.append(
            Halt(
                reason=f"the quorum led by node {event.leader_id} is another cluster than "
                f"{core.cluster_id}, which this directory was formatted for. Check quorum.voters, or "
                "format a new directory for that cluster."
            )
        )


def retry_deadline_ms(core: Core) -> int | None:
    """When a peer that backs off may be asked again."""
    return min(
        (
            backoff.retry_at_ms
            for backoff in core.requests.backoffs.values()
            if backoff.retry_at_ms > core.now_ms
        ),
        default=None,
    )
