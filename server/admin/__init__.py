"""What an operator does to a directory before or between runs: first voters, restore."""
