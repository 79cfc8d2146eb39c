"""Tables of the log, kept up to date: records, leadership, voter_sets, state, key_history.

Which files count is in manifests (see `manifests`), so any engine can read them.
"""

from __future__ import annotations

from quorumd.pipeline.tables.manifests import table_files
from quorumd.pipeline.tables.reading import read_table, state_as_of

__all__ = ["read_table", "state_as_of", "table_files"]
