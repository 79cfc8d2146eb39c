"""What the rooms of the daemon share: protocols, values, counters, log lines. Knows no socket and no file."""
