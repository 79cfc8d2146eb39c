"""The node that served a client: as it was when the request arrived, and when the response left."""

from __future__ import annotations

from typing import NamedTuple

from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey


class NodeView(NamedTuple):
    """A node at a moment. Offsets are exclusive ends, but for the first offset of its log."""

    key: ReplicaKey
    role: Role
    epoch: int
    start_offset: int
    committed_offset: int


class Served(NamedTuple):
    """`asked_us` is when the client asked. `is_prompt`: its clock is right, and it was not paused lately."""

    arrived: NodeView
    left: NodeView
    asked_us: int
    is_prompt: bool
    fetch_timeout_ms: int

    @property
    def as_leader(self) -> NodeView:
        """The later moment at which it led, if there is one: it may be deposed while its disk is read."""
        return self.left if self.left.role is Role.LEADER else self.arrived


def view_of(node: RaftNode) -> NodeView:
    """The node at this moment."""
    return NodeView(node.local, node.role, node.epoch, node.log_start_offset, node.committed_offset)
