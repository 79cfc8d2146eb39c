"""Quorum of the fixture `quorum`, which other tests use, too."""

from __future__ import annotations

from typing import NoReturn

from quorumd.testing.local_quorum import LocalQuorum


class SharedQuorum:
    """One test's part of a quorum: where it is, and names that no other test has.

    `prefix` is text, ends with `/`, and differs from test to test, and in each run of one: keys that begin
    with it are this test's. A record without a key is known by its offset: `begin_offset` was the end of what
    was committed when the test began, so its records are at that offset or later.
    """

    def __init__(self, local: LocalQuorum, prefix: str) -> None:
        self._local = local
        self.prefix = prefix
        self.servers = local.servers
        leader = local.leader()
        self.begin_offset: int = local.status(leader).get("high_watermark", 0)

    def key(self, name: str) -> bytes:
        """A key of this test, as clients take it."""
        return f"{self.prefix}{name}".encode()

    def logs(self) -> str:
        """The newest lines that each node has logged."""
        return self._local.logs()

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(LocalQuorum, name):
            raise AttributeError(
                f"the fixture `quorum` has no {name}: other tests use the same nodes. The fixture "
                "`own_quorum` has it, and is this test's alone"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
