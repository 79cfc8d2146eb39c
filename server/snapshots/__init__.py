"""Snapshots of this replica: when one is built, the subprocess, outgoing copies, deletion."""
