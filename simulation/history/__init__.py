"""Events so far: the book of each replica, and the voter sets that logs have named."""
