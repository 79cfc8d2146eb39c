"""The health of a partition, for operators: problems in words, and all of it for `/status`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.raft.status import RaftStatus
from quorumd.raft.types import VoterSet, uuid_to_text
from quorumd.server.model.partition_view import PartitionView
from quorumd.server.peers.peer_links import PeerLinks
from quorumd.server.snapshots.manager import SnapshotManager

DISK_SILENT_S: Final = 5.0
"""A disk on which one write or sync takes this long hangs."""


class PartitionHealth:
    """Computed at each call; `last_report` is the newest of the rules' remarks, empty if none."""

    def __init__(
        self,
        node: RaftNode,
        view: PartitionView,
        snapshots: SnapshotManager,
        links: PeerLinks,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._node = node
        self._view = view
        self._snapshots = snapshots
        self._links = links
        self._monotonic_s = monotonic_s
        self._role_since = monotonic_s()
        self.is_disk_full = False
        self.last_report = ""

    def note_role(self) -> None:
        """The role has just changed."""
        self._role_since = self._monotonic_s()

    def problems(self) -> list[str]:
        """Reasons why this node is not ready, in words; empty if it is."""
        now, found = self._node.status(), []
        disk = self._disk_problem(now)
        if disk is not None:
            found.append(disk)
        missing = [
            voter_id
            for voter_id in now.voters.ids
            if voter_id in now.unreachable or self._links.is_missing(voter_id)
        ]
        up = (
            f"{len(now.voters) - len(missing)} of {len(now.voters)} voters seem to be up, a majority is "
            "needed"
        )
        if now.leader is None or now.role is Role.RESIGNED:
            found.append(f"no leader is known in epoch {now.epoch}: {up}")
            if now.epoch == 0 and now.role is Role.OBSERVER and len(now.voters) > 0 and not missing:
                found.append(
                    "this directory was formatted without --bootstrap, so it waits for a quorum that exists: "
                    "the first voters of a new one are formatted with it"
                )
            if now.role is Role.OBSERVER and now.older_epoch is not None:
                found.append(
                    f"this observer has heard of epoch {now.epoch}, and gets responses of epoch "
                    f"{now.older_epoch}: it takes nothing until the quorum is as far. If that stays so, give "
                    "it an empty directory, or run quorumctl transfer-leader: each takes the quorum one "
                    "epoch further"
                )
            found += self._only_a_witness(now.voters)
            found += self._links.unreachable()
        elif now.role is Role.LEADER:
            if now.bootstrap_problem is not None:
                found.append(now.bootstrap_problem)
            elif now.high_watermark is None:
                found.append("leads, but has not committed a record of its epoch yet")
        elif now.problem is not None:
            found.append(now.problem)
        elif not now.has_leader_contact and disk is None:
            foreign, name = self._links.foreign(), f"node {now.leader.id}"
            if name not in foreign:
                text = f"the leader, {name}, does not respond"
                found.append(f"{text}; {up}" if 2 * len(missing) >= len(now.voters) else text)
            found += foreign.values()
        elif now.high_watermark is None:
            found.append(
                f"follows, but does not know yet what is committed: ask node {now.leader.id}, which "
                "leads and knows what it waits for"
            )
        return found

    def _only_a_witness(self, voters: VoterSet) -> list[str]:
        """Beside Kafka it leads for a hand-over at the most, and to nobody can this one hand over."""
        local_id = self._node.config.local.id
        if not (self._view.is_kafka_log and self._view.is_witness and voters.ids == (local_id,)):
            return []
        return [
            "this witness is the only voter, and leads no Kafka quorum: nothing can be written any more. Put "
            f"a controller in its place, with `quorumctl export-kafka DIR --node-id {local_id}`: kafka.md, "
            "If only a witness votes"
        ]

    def _unnamed_witness(self, now: RaftStatus) -> list[str]:
        """Kafka counts a voter that configuration names by its fetches, whether it knows of that or not."""
        is_witness = self._view.is_kafka_log and self._view.is_witness
        has_copied = now.leader is not None and now.log_end.offset > 0
        local_id = self._node.config.local.id
        if not is_witness or not has_copied or now.voters_offset >= 0 or local_id in now.voters.ids:
            return []
        return [
            "this witness gives no vote: the log names no voters (kraft.version 0), and quorum.voters does "
            f"not name node {local_id}. Where controller.quorum.voters of the controllers names it, "
            "they count on it: give it the same list"
        ]

    def _disk_problem(self, now: RaftStatus) -> str | None:
        """The reason why the disk takes no writes, in words; None if it does."""
        if self.is_disk_full:
            return "the disk is full: free space, the node goes on by itself"
        patience_s = DISK_SILENT_S
        if now.role is not Role.LEADER and not now.has_leader_contact:
            # A follower fetches again when it has written: where its disk is silent, the leader seems to be.
            patience_s = min(patience_s, self._node.config.fetch_timeout_ms / 2000)
        age_s = self._view.write_age_s()
        if age_s < patience_s:
            return None
        return (
            f"the disk has not responded for {age_s:.1f} s: look into the kernel's log, the node goes on "
            "by itself when it does"
        )

    def warnings(self) -> list[str]:
        """Warnings about faults, and about problems at the next start, in words."""
        now = self._node.status()
        unexpected = [
            f"replica {voter_id} votes, but quorum.voters does not name it: this node would not start "
            "again. Remove quorum.voters from its configuration, or add the id there"
            for voter_id in now.unexpected_voters
        ]
        if now.is_voter_by_mistake:
            unexpected.append(
                "this node votes in a Kafka quorum, but quorum.witness is off: it would not start again. Set "
                "quorum.witness: true"
            )
        unexpected += self._unnamed_witness(now)
        unexpected += [
            f"{where}: its directory was copied, and both copies run. Together they can vote twice and lose "
            "records: end the copy, and never start it again"
            for where in now.running_twice
        ]
        if now.role is Role.LEADER:
            unexpected += _two_under_one_id(now.voters)
        if self._snapshots.log_damage:
            unexpected.append(
                f"the log on this disk is damaged, as a snapshot that was to be taken has found: "
                f"{self._snapshots.log_damage}"
            )
        if self._snapshots.is_limited_in_vain:
            unexpected.append(
                "retention.bytes and retention.ms delete nothing beside Kafka: this node builds no "
                "snapshots. Remove them, and mind the disk; a new directory begins with Kafka's snapshot"
            )
        return [*unexpected, *self._view.obstacles, *self._links.warnings()]

    def as_json(self) -> dict[str, object]:
        """All of it, for `/status`."""
        view, unreachable = self._view, self._node.status().unreachable
        return {
            "problems": self.problems(),
            "warnings": self.warnings(),
            "cluster_id": view.cluster_id,
            "log_owner": "kafka" if view.is_kafka_log else "quorumd",
            "role": view.role,
            "epoch": view.leader_epoch,
            "leader_id": view.leader_id,
            "role_since_s": round(self._monotonic_s() - self._role_since, 3),
            "log_start_offset": view.log_start_offset,
            "log_end_offset": view.log_end_offset,
            "high_watermark": view.high_watermark,
            "missing_records": view.missing_records,
            "unreachable_peers": self._links.unreachable(),
            "plaintext_peers": sorted(self._links.behind),
            "voters": [
                {
                    "id": voter.key.id,
                    "storage_id": None if voter.key.uuid is None else uuid_to_text(voter.key.uuid),
                    "endpoints": [str(at) for at in voter.endpoints],
                    "unreachable": voter.key.id in unreachable,
                }
                for voter in view.voters
            ],
            "replicas": [
                {
                    "id": row.key.id,
                    "storage_id": None if row.key.uuid is None else uuid_to_text(row.key.uuid),
                    "is_voter": is_voter,
                    "log_end_offset": row.log_end_offset,
                    "lag": max(0, view.log_end_offset - max(0, row.log_end_offset)),
                    "last_fetch_ms": row.last_fetch_ms,
                    "last_caught_up_ms": row.last_caught_up_ms,
                }
                for is_voter, rows in (
                    (True, view.voter_statuses()),
                    (False, view.observer_statuses()),
                )
                for row in rows
            ],
            "voters_committed": view.committed_voters == view.voters,
            "target_voters": view.target_voters,
            "pending_changes": [
                {
                    "kind": change.kind,
                    "replica": None if change.key is None else str(change.key),
                    "waiting_ms": change.waiting_ms,
                    "waits_for": change.waits_for,
                }
                for change in view.pending_changes()
            ],
            "snapshots": self._snapshots.status(),
            "last_report": self.last_report,
        }


def _two_under_one_id(voters: VoterSet) -> list[str]:
    """As after the first step of the replacement of a disk: the lost one counts until it is removed."""
    named = {each: [key for key in voters.keys if key.id == each] for each in voters.ids}
    counted = f"a majority is {len(voters) // 2 + 1} of {len(voters)}"
    return [
        f"{' and '.join(map(str, keys))} are two voters under one id, and both count: {counted}. Remove the "
        f"one whose disk is gone: `quorumctl replace-voter {voter_id}` does it"
        for voter_id, keys in named.items()
        if len(keys) > 1
    ]
