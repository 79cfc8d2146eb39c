"""Simulated machines: disks, network, clocks, and the processes of the daemon that run on them."""
