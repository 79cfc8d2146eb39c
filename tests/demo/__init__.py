"""The demo, run as a user runs it."""
