"""Image and compose files."""
