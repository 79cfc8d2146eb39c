"""The audit, for tests of a live quorum: its directories are sound and hold the same."""

from __future__ import annotations

from quorumd.pipeline.audit import AuditReport, audit
from tests.support.live_cluster import Cluster


def assert_audited(cluster: Cluster, *nodes: int) -> AuditReport:
    """Audits the directories of these nodes (none named: all), which may run and be written to."""
    found = audit([cluster.storage_dir(node) for node in nodes or cluster.ids])
    damage = [str(finding) for finding in found.findings if finding.is_damage]
    assert found.is_sound, "\n".join(damage)
    assert found.batches, "nothing was audited"
    return found
