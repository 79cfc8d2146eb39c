"""Clients of the quorum: producers, readers, and operators who change its voters."""
