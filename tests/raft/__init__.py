"""The rules, event by event."""
