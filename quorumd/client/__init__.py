"""The client of a quorum: append, read and describe its log over the network.

Knows the wire protocol and who leads; knows no disk, no configuration file and no daemon.
"""
