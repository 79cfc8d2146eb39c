"""Snapshots of this replica: when one is built, the process that builds it, who copies it, what goes."""
