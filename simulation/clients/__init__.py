"""Clients of the quorum: producers, readers, and operators that change its voters."""
