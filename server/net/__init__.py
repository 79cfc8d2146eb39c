"""Sockets that clients and peers connect to: listeners, connections, frames. Knows no request by name."""
