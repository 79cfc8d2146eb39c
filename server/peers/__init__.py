"""Connections to other replicas: where they are reached, what is sent to them, what comes back."""
