"""The end of an asyncio server, for tests that leave no connection behind."""

from __future__ import annotations

import asyncio


async def stop_accepting(server: asyncio.Server) -> None:
    """Close a listener; all connections that it had accepted have begun.

    In Python 3.11 a connection that was accepted in the loop's turn before `Server.close` fails at its
    start, and stays open until it is garbage (`Server._attach` finds no sockets). So nothing more is
    accepted first, and what has been begins, and then the listener closes.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening)
    # Accepted, transport, connection made, its own task: a turn for each, and one more.
    for _ in range(5):
        await asyncio.sleep(0)
    server.close()
