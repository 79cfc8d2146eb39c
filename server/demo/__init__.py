"""`quorumd demo`: three nodes on this machine, to look at and to break. Nothing in the daemon needs it."""
