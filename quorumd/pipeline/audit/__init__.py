"""Do the replicas agree? Scrub, comparison, verdict. No Spark: that only spreads the work, if it is wanted.

audited = audit([path, ...])
audited.is_sound, audited.findings
"""

from quorumd.pipeline.audit.findings import FINDINGS, Finding, Kind, findings_table, row_of
from quorumd.pipeline.audit.run import (
    Audited,
    BadReplicas,
    Done,
    Spread,
    Work,
    audit,
    do_work,
    in_this_process,
)

__all__ = [
    "FINDINGS",
    "Audited",
    "BadReplicas",
    "Done",
    "Finding",
    "Kind",
    "Spread",
    "Work",
    "audit",
    "do_work",
    "findings_table",
    "in_this_process",
    "row_of",
]
