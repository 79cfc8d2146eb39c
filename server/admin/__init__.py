"""Work of an operator on a directory before or between runs: first voters, restore."""
