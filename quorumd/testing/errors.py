"""Errors of a quorum for tests."""

from __future__ import annotations


class LocalQuorumError(Exception):
    """A node ended by itself, or did not do in time what was waited for; the text has what was logged."""
