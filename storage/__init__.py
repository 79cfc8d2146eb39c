"""Bytes on disk: the segmented log, its indexes and epochs, and the small files beside it.

Knows no socket and no consensus rule. All access to the disk goes through quorumd.storage.filesystem.
"""
