"""The disk side of a partition: the thread that writes, the thread that reads, recovery at start."""
