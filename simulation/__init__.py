"""A whole quorum in one process under simulated time, disks and network: same seed, same run."""
