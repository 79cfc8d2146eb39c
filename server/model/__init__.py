"""Shared parts of the daemon's rooms: protocols, values, counters, log lines. Knows no socket and no file."""
