"""A program that holds a lock for a moment: `python -m bench.lock_holder quorumd|kazoo SERVERS NAME`.

The same with two libraries, `quorumd.Lock` and kazoo's recipe for ZooKeeper. Its variables are those of the
script in bench/run_coordination.py.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path


def note_time() -> None:
    """One more line of nanoseconds in the file."""
    with open(os.environ["TIMES"], "a") as times:
        times.write(f"{time.time_ns()}\n")


def hold_s() -> float:
    """Seconds. The first holder waits until the others are in the queue."""
    first = Path(os.environ["FIRST"])
    if first.exists():
        first.unlink()
        return float(os.environ["QUEUE_S"])
    return float(os.environ["HOLD_S"])


async def with_quorumd(servers: str, name: str) -> None:
    import quorumd

    async with quorumd.QuorumClient(servers) as client, quorumd.Lock(client, name):
        note_time()
        await asyncio.sleep(hold_s())
        note_time()


def with_kazoo(servers: str, name: str) -> None:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=servers)
    client.start()
    with client.Lock(f"/{name}"):
        note_time()
        time.sleep(hold_s())
        note_time()
    client.stop()


def main() -> None:
    library, servers, name = sys.argv[1:]
    if library == "quorumd":
        asyncio.run(with_quorumd(servers, name))
    else:
        with_kazoo(servers, name)


if __name__ == "__main__":
    main()
