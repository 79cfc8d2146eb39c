"""Consequences of an advance of the high watermark.

Sources: KIP-595 (high watermark), KIP-856 (removal, cluster id, bootstrapping).
"""

from __future__ import annotations

from typing import Final

from quorumd.raft.core import Core
from quorumd.raft.effects import AdoptClusterId, AnnounceHighWatermark, PersistRemoval
from quorumd.raft.role_changes import take_role

RECORD_INTERVAL_MS: Final = 1_000


def commit(core: Core, offset: int) -> None:
    """Everything below `offset` is committed; a smaller offset than before changes nothing."""
    if core.high_watermark is not None and offset <= core.high_watermark:
        return
    if offset < core.committed_offset:
        return
    core.high_watermark = core.committed_offset = offset
    core.effects.append(AnnounceHighWatermark(offset))
    if core.cluster_id is None:
        entry = core.log.voter_entries[-1]
        if 0 <= entry.offset < offset:
            _adopt_cluster_id(core, entry.record.cluster_id)
    record_voter_set(core)
    if core.config.is_kafka_log and core.now_ms >= core.kafka_log.next_record_ms:
        record_high_watermark(core)


def record_high_watermark(core: Core) -> None:
    """Keep on disk how far the log of a Kafka quorum is known to be committed, a second behind at most.

    If that quorum is lost its log is restored from this replica, up to there.
    """
    core.kafka_log.next_record_ms = core.now_ms + RECORD_INTERVAL_MS
    if min(core.committed_offset, core.log.synced_end_offset) > core.recorded_offset:
        core.persist()


def record_voter_set(core: Core) -> None:
    """Keep on disk that the latest voter set is committed, as soon as its record is synced here.

    That says for ever that bootstrapping is over. A replica that the set leaves out observes from now on.
    """
    electorate = core.electorate
    named_at = electorate.entry.offset
    if not electorate.has_local:
        _note_removal(core)
        take_role(core)
    if core.recorded_offset <= named_at < min(core.committed_offset, core.log.synced_end_offset):
        core.persist()


def _note_removal(core: Core) -> None:
    """This replica voted by a committed set, and does not by the latest one, committed too."""
    if core.was_removed:
        return
    committed = [
        entry.record.voters.find(core.local) is not None
        for entry in core.log.voter_entries
        if 0 <= entry.offset < core.committed_offset
    ]
    if True in committed and core.log.voters_offset < core.committed_offset:
        core.was_removed = True
        core.effects.append(PersistRemoval())


def _adopt_cluster_id(core: Core, cluster_id: str | None) -> None:
    if cluster_id is not None:
        core.cluster_id = cluster_id
        core.effects.append(AdoptClusterId(cluster_id=cluster_id))
