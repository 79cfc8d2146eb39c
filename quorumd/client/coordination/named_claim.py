"""The common part of locks, elections and registrations: a name, and what their record says."""

from __future__ import annotations

from typing import ClassVar

from quorumd.client.client import QuorumClient
from quorumd.client.coordination.contender import Contender
from quorumd.client.coordination.coordinator import Coordinator
from quorumd.client.coordination.keys import (
    TTL_S_DEFAULT,
    ClaimKind,
    Place,
    check_name,
    check_texts,
    ttl_ms_of,
)
from quorumd.client.coordination.tenure import Tenure, new_record


class NamedClaim:
    """A name of a quorum that this object can have; see Lock, Election and Registration.

    `ttl` is in seconds, from 1 to 86,400. `owner` (without it the user), host, pid and `comment` are in the
    record for people to read. Raises ValueError for a name, ttl or text that is not permitted.
    """

    _KIND: ClassVar[ClaimKind]
    _RULES: ClassVar[type[Contender]] = Contender

    def __init__(
        self,
        client: QuorumClient,
        name: str,
        *,
        value: str = "",
        ttl: float = TTL_S_DEFAULT,
        owner: str | None = None,
        comment: str = "",
    ) -> None:
        self.name = check_name(name)
        self.ttl = ttl
        self._ttl_ms = ttl_ms_of(ttl)
        check_texts(owner=owner, comment=comment, value=value)
        self._value = value
        self._owner = owner
        self._comment = comment
        self._coordinator = client.companion(Coordinator)
        self._place = Place(self._KIND, name)
        self._tenure: Tenure | None = None

    def _new_tenure(self) -> Tenure:
        """A further claim to the name, which is to be acquired."""
        record = new_record(
            self._coordinator,
            owner=self._owner,
            comment=self._comment,
            ttl_ms=self._ttl_ms,
            value=self._value,
        )
        return Tenure(self._coordinator, self._RULES(self._place, record))
