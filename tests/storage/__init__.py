"""Log, snapshots and state on disks that fail."""
