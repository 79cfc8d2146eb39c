"""The node's page."""
