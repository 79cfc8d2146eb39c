"""Do the replicas agree? Scrub, comparison, verdict. No Spark: that only spreads the work, if it is wanted.

audited = audit([path, ...])
audited.is_sound, audited.findings
"""

from quorumd.pipeline.audit.findings import (
    FINDINGS,
    AuditFinding,
    FindingKind,
    findings_table,
    row_of,
)
from quorumd.pipeline.audit.run import (
    AuditReport,
    AuditTask,
    BadReplicas,
    TaskResult,
    TaskRunner,
    audit,
    in_this_process,
    run_task,
)

__all__ = [
    "FINDINGS",
    "AuditFinding",
    "AuditReport",
    "AuditTask",
    "BadReplicas",
    "FindingKind",
    "TaskResult",
    "TaskRunner",
    "audit",
    "findings_table",
    "in_this_process",
    "row_of",
    "run_task",
]
