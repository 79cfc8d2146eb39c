"""Is what lies on a disk sound? Only reads, and takes no lock: also beside a running node."""
