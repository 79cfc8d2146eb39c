"""The compiled form."""
