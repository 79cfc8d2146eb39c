"""The library for code without asyncio: the same names, to be used in `with`, and calls that wait.

    from quorumd.sync import KeyValueView, Lock, QuorumClient

    with QuorumClient("localhost:9093") as client, KeyValueView(client) as view:
        view.update(b"hits", lambda hits: b"%d" % (int(hits or b"0") + 1))
        with Lock(client, "jobs/nightly", ttl=10) as lock:
            print("token", lock.token)

A client has an event loop in a thread of its own, in which everything that is made of it runs; any thread may
call. Values, events and errors are those of `quorumd`. Ctrl-C in a call that waits cancels it there. A client
does not survive a fork: make another one in the child.
"""

from quorumd.sync.client import QuorumClient
from quorumd.sync.coordination import Election, Lock, Loss, Registration
from quorumd.sync.view import KeyValueView, Transaction

__all__ = [
    "Election",
    "KeyValueView",
    "Lock",
    "Loss",
    "QuorumClient",
    "Registration",
    "Transaction",
]
