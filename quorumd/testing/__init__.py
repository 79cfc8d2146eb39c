"""A quorum of real nodes for the tests of programs that use one. docs/testing.md has examples.

    from quorumd.testing import LocalQuorum

    with LocalQuorum(nodes=3) as quorum:
        ...  # a program that is given quorum.servers
        quorum.kill_leader()

`AsyncLocalQuorum` is the same for `async with`; with pytest there are the fixtures `quorum` and `own_quorum`.
"""

from quorumd.testing.async_quorum import AsyncLocalQuorum
from quorumd.testing.errors import LocalQuorumError
from quorumd.testing.local_quorum import LocalQuorum
from quorumd.testing.shared_quorum import SharedQuorum

__all__ = ["AsyncLocalQuorum", "LocalQuorum", "LocalQuorumError", "SharedQuorum"]
