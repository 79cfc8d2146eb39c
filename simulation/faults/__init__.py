"""What goes wrong, and what operators do, by name; and how much of it a quorum survives."""
