"""Measures a real quorum of three nodes on this machine; see README.md."""
