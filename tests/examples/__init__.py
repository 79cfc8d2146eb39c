"""The examples, run."""
