"""The rows of the page: every voter and observer, how far it is, and in words how it does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

from quorumd.raft.types import ReplicaKey, Voter, uuid_to_text
from quorumd.server.page.leader import LeaderReport
from quorumd.server.page.source import PageSource
from quorumd.wire.messages.describe_quorum import DescribeQuorumResponseReplica
from quorumd.wire.schema import ZERO_UUID


class Health(StrEnum):
    """State of a replica, as far as this node can say."""

    GOOD = "good"
    BEHIND = "behind"
    SILENT = "silent"
    GONE = "gone"
    """Connections to its process are refused."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """One replica. Times are ms before now; `end_offset` and `lag` in records; None is unknown.

    `copied` is how much of a snapshot it has copied from the leader, 0 to 1.
    """

    key: ReplicaKey
    role: str
    """leader, voter or observer."""
    is_local: bool
    end_offset: int | None = None
    lag: int | None = None
    contact_ms: int | None = None
    caught_up_ms: int | None = None
    addresses: tuple[str, ...] = ()
    health: Health = Health.UNKNOWN
    copied: float | None = None

    def as_json(self) -> dict[str, object]:
        return {
            "id": self.key.id,
            "storage_id": storage_id(self.key),
            "role": self.role,
            "is_local": self.is_local,
            "end_offset": self.end_offset,
            "lag": self.lag,
            "contact_ms": self.contact_ms,
            "caught_up_ms": self.caught_up_ms,
            "addresses": self.addresses,
            "health": self.health,
            "copied": self.copied,
        }


def storage_id(key: ReplicaKey) -> str | None:
    """The storage id as Kafka's tools write it; None if it is not known."""
    return None if key.uuid is None else uuid_to_text(key.uuid)


def as_key(replica_id: int, uuid: UUID) -> ReplicaKey:
    """A replica as messages name it: the zero uuid is one that is not known."""
    return ReplicaKey(replica_id, None if uuid == ZERO_UUID else uuid)


def rows_of(source: PageSource, report: LeaderReport, is_new_leader: bool) -> list[ReplicaRow]:
    """As the leader reports them; without a report, the voters as this node knows them.

    Replicas need not have fetched from a new leader yet.
    """
    if report.partition is None:
        return [_unheard(source, voter) for voter in source.view.voters]
    return _Heard(source, report, is_new_leader).rows()


def _unheard(source: PageSource, voter: Voter) -> ReplicaRow:
    view = source.view
    is_local = voter.key.matches(view.local)
    health = Health.UNKNOWN
    if is_local:
        health = Health.GOOD
    elif voter.key.id in source.unreachable():
        health = Health.GONE
    return ReplicaRow(
        key=voter.key,
        role="leader" if voter.key.id == source.leader_id() else "voter",
        is_local=is_local,
        end_offset=view.log_end_offset if is_local else None,
        addresses=tuple(f"{at.host}:{at.port}" for at in voter.endpoints),
        health=health,
    )


class _Heard:
    """The leader's response, read."""

    def __init__(self, source: PageSource, report: LeaderReport, is_new_leader: bool) -> None:
        assert report.partition is not None, "there is a response"
        self._partition = partition = report.partition
        self._view = source.view
        self._unreachable = source.unreachable()
        self._copied = {
            as_key(copy.replica_id, copy.replica_directory_id): copy.position
            / max(1, copy.size_bytes)
            for copy in partition.snapshot_copies or ()
        }
        self._fetch_timeout_ms = source.fetch_timeout_ms
        self._is_new_leader = is_new_leader
        self._age_ms = int(report.age_s * 1000)
        self._addresses: dict[ReplicaKey | int, tuple[str, ...]] = {}
        for node in report.nodes:
            key = as_key(node.node_id, node.directory_id)
            at = tuple(f"{each.host}:{each.port}" for each in node.listeners)
            self._addresses[key if key.uuid else key.id] = at
        # Its own times are its clock's now: ages against them need no common clock. A disk of the
        # leader that was lost may still stand under its id.
        self._leader = max(
            (each for each in partition.current_voters if each.replica_id == partition.leader_id),
            key=lambda each: each.last_fetch_timestamp,
            default=None,
        )
        replicas = (*partition.current_voters, *partition.observers)
        self._now_ms = max((each.last_fetch_timestamp for each in replicas), default=-1)
        self._end_offset = partition.high_watermark
        if self._leader is not None:
            self._now_ms = self._leader.last_fetch_timestamp
            self._end_offset = self._leader.log_end_offset

    def rows(self) -> list[ReplicaRow]:
        """Voters, then observers, by key."""
        partition = self._partition
        return [
            *sorted(map(self._voter, partition.current_voters), key=_order),
            *sorted(map(self._observer, partition.observers), key=_order),
        ]

    def _voter(self, replica: DescribeQuorumResponseReplica) -> ReplicaRow:
        if replica is not self._leader:
            return self._row(replica, "voter")
        is_fresh = self._age_ms <= self._fetch_timeout_ms
        return replace(
            self._row(replica, "leader"),
            lag=0,
            contact_ms=self._age_ms,
            caught_up_ms=None,
            health=Health.GOOD if is_fresh else Health.SILENT,
        )

    def _observer(self, replica: DescribeQuorumResponseReplica) -> ReplicaRow:
        return self._row(replica, "observer")

    def _row(self, replica: DescribeQuorumResponseReplica, role: str) -> ReplicaRow:
        key = as_key(replica.replica_id, replica.replica_directory_id)
        end_offset = replica.log_end_offset if replica.log_end_offset >= 0 else None
        contact_ms = self._ago_ms(replica.last_fetch_timestamp)
        caught_up_ms = self._ago_ms(replica.last_caught_up_timestamp)
        health = Health.GOOD
        if self._is_late(contact_ms):
            health = Health.GONE if key.id in self._unreachable else Health.SILENT
            if self._is_new_leader and contact_ms is None and health is Health.SILENT:
                health = Health.UNKNOWN
        elif self._is_late(caught_up_ms):
            health = Health.BEHIND
        return ReplicaRow(
            key=key,
            role=role,
            is_local=key.matches(self._view.local),
            end_offset=end_offset,
            lag=None if end_offset is None else max(0, self._end_offset - end_offset),
            contact_ms=contact_ms,
            caught_up_ms=caught_up_ms,
            addresses=self._addresses.get(key) or self._addresses.get(key.id, ()),
            health=health,
            copied=self._copied.get(key),
        )

    def _ago_ms(self, at_ms: int) -> int | None:
        return None if at_ms < 0 else max(0, self._now_ms - at_ms) + self._age_ms

    def _is_late(self, ago_ms: int | None) -> bool:
        """At the time of the response."""
        return ago_ms is None or ago_ms - self._age_ms > self._fetch_timeout_ms


def _order(row: ReplicaRow) -> tuple[int, int]:
    return row.key.sort_key()
