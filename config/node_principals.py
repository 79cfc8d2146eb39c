"""Certificates that speak for a node, `quorum.node.principals`, or may do all: `super.users`.

A principal is one node's or no node's: ids are compared as decimal text, and a text that could be read as two
ids is neither of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from quorumd.config.errors import BadValue
from quorumd.config.values import MAX_ID

ID: Final = "{id}"
USER: Final = "User:"
_FORM: Final = f"{USER}quorumd-{ID}"
_DIGITS: Final = "0|[1-9][0-9]{0,9}"


@dataclass(frozen=True, slots=True)
class NodePrincipals:
    """The principals of nodes, as templates in which {id} stands once for the id of the node."""

    templates: tuple[str, ...]
    _patterns: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        halves = (map(re.escape, template.split(ID)) for template in self.templates)
        patterns = tuple(re.compile(f"({_DIGITS})".join(each)) for each in halves)
        object.__setattr__(self, "_patterns", patterns)

    def id_of(self, principal: str) -> int | None:
        """The node that has this principal; None if it is no node's."""
        found = (pattern.fullmatch(principal) for pattern in self._patterns)
        ids = {int(match[1]) for match in found if match is not None}
        replica_id = ids.pop() if len(ids) == 1 else None
        return None if replica_id is None or replica_id > MAX_ID else replica_id

    def may_speak_for(self, principal: str, replica_id: int) -> bool:
        """True if the certificate of this principal is that node's."""
        return self.id_of(principal) == replica_id


def node_principals(text: str) -> NodePrincipals:
    """Templates, separated by semicolons. Raises BadValue."""
    templates = tuple(dict.fromkeys(entry.strip() for entry in text.split(";")))
    for template in templates:
        if not template:
            raise BadValue(f"an entry is empty: separate principals such as {_FORM} by one ';'")
        if not template.startswith(USER):
            raise BadValue(f"{template!r} does not begin with {USER}, as in {_FORM}")
        if ID not in template:
            raise BadValue(
                f"{template!r} names no node: {ID} has to stand where the id of the node does, as in "
                f"{_FORM}. Principals that may speak for every node belong in super.users, without "
                "quorum.node.principals"
            )
        if template.count(ID) > 1:
            raise BadValue(f"{template!r} has {ID} more than once: write it where one id stands")
    for one, other in combinations(templates, 2):
        if (both := _of_two_nodes(one, other)) is not None:
            raise BadValue(
                f"{both!r} would be the principal of two nodes, by {one!r} and by {other!r}: keep one of "
                f"them, or put something that is no digit beside {ID}"
            )
    return NodePrincipals(templates)


def super_users(text: str) -> frozenset[str]:
    """Principals such as `User:name`, separated by semicolons."""
    found = [entry.strip() for entry in text.split(";") if entry.strip()]
    for entry in found:
        if not entry.startswith(USER) or entry == USER:
            raise BadValue(
                f"{entry!r} is no principal: write User: and the name, several separated by "
                "semicolons, such as User:alice;User:bob"
            )
    if not found:
        raise BadValue("there is no principal: write at least one, such as User:alice")
    return frozenset(found)


def _of_two_nodes(one: str, other: str) -> str | None:
    """A principal that both templates fit, with different ids; None if there is none."""
    halves = [template.split(ID) for template in (one, other)]
    (shorter, end), (longer, other_end) = sorted(halves, key=lambda half: len(half[0]))
    # Its id in the template that begins shorter ends within what the other one begins with in addition,
    # or covers that, and digits of the other's id, and perhaps what the other one ends with in addition.
    before, behind = longer[len(shorter) :], other_end[: max(0, len(other_end) - len(end))]
    tried = [before[:length] for length in range(1, len(before) + 1)]
    tried += [f"{before}1{more}" for more in ("", behind)]
    both = NodePrincipals((one, other))
    for principal in (f"{shorter}{digits}{end}" for digits in tried):
        if both.id_of(principal) is None and all(
            NodePrincipals((each,)).id_of(principal) is not None for each in (one, other)
        ):
            return principal
    return None
