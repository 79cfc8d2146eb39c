"""The daemon: sockets, clock, threads and disk around the rules of `raft`."""
