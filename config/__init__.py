"""YAML + environment -> one validated, typed configuration.

Imports nothing of the other packages but `quorumd.raft.types`.
"""
