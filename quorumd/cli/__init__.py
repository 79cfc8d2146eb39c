"""`quorumctl`: everything that is done to a quorum over the network, or to its files offline."""
