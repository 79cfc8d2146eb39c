"""The view that a simulated server has of the connection that a request came in on."""

from __future__ import annotations

from collections.abc import Callable

from quorumd.raft.types import Endpoint, ReplicaKey

Reply = Callable[[bytes], None]
"""Takes a complete response frame, length included, back to the client."""


class Channel:
    """See the module's docstring. `replica` is the asker, if it is a node."""

    def __init__(
        self, listener: Endpoint, peer: str, software: str, replica: ReplicaKey | None = None
    ) -> None:
        self.listener = listener
        self.peer = peer
        self.replica = replica
        self.client_software_name = software
        self.client_software_version = ""
        self.is_open = True
