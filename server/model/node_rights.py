"""Principals that are nodes: of requests that this node gets, and of the nodes that it connects to.

Without `quorum.node.principals` these are the principals of `super.users`, for any id, as in Apache Kafka;
without that, too, every principal with a certificate of a trusted CA.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from quorumd.config.node_principals import ID, USER, NodePrincipals
from quorumd.security.identity import ANONYMOUS


class NodeRights:
    """Principals that may speak for each node."""

    def __init__(self, templates: NodePrincipals | None, super_users: AbstractSet[str]) -> None:
        self._templates = templates
        self._super_users = super_users

    @property
    def is_open(self) -> bool:
        """Any certificate may speak for any node."""
        return self._templates is None and not self._super_users

    def may_speak_for(self, principal: str, replica_id: int) -> bool:
        """True if what this principal says in the name of that replica counts."""
        if self._templates is not None:
            return self._templates.may_speak_for(principal, replica_id)
        return self.is_node(principal)

    def is_node(self, principal: str) -> bool:
        """True if this principal may speak for any node at all."""
        if self._templates is not None:
            return self._templates.id_of(principal) is not None
        if self._super_users:
            return principal in self._super_users
        return principal not in (ANONYMOUS, "")

    def rule_for(self, replica_id: int) -> tuple[str, str]:
        """The key of the configuration that decides which principals may speak for a replica, and these."""
        if self._templates is not None:
            principals = [each.replace(ID, str(replica_id)) for each in self._templates.templates]
            return "quorum.node.principals", " or ".join(principals)
        return "super.users", " or ".join(sorted(self._super_users))


def shown(principal: str) -> str:
    """The name in a principal, for a text."""
    return principal.removeprefix(USER)
