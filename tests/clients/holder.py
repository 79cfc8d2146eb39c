"""A process that takes a lock again and again, and writes to a fenced register while it believes to hold it.

    python -m tests.clients.holder SERVERS LOCK TTL MODE

Prints a line for each step, flushed, with CLOCK_MONOTONIC, which all processes of a machine share:
`has TOKEN`, `write TOKEN TIME`, `gone`. MODE `keep`: holds it until it is told to end; `again`: for a
moment, then gives it back; `sync`: as `keep`, by quorumd.sync.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

from quorumd import Lock, LockLost, QuorumClient, Record, sync


def say(*words: object) -> None:
    print(*words, flush=True)


async def work(client: QuorumClient, lock: Lock, mode: str) -> None:
    until = time.monotonic() + (3600 if mode == "keep" else random.uniform(0, 0.5))
    while (now := time.monotonic()) < until:
        if lock.lost.is_set():
            return
        # It was not lost at a later moment than `now`: so it was held then.
        say("write", lock.token, now)
        await client.append([Record(key=b"register", value=b"%d" % lock.token)])
        await asyncio.sleep(0.005)


async def main(servers: str, name: str, ttl: float, mode: str) -> None:
    async with QuorumClient(servers) as client:
        while True:
            try:
                async with Lock(client, name, ttl=ttl, comment=mode) as lock:
                    say("has", lock.token)
                    await work(client, lock, mode)
            except LockLost:
                say("gone")


def keep_in_sync(servers: str, name: str, ttl: float) -> None:
    with sync.QuorumClient(servers) as client, sync.Lock(client, name, ttl=ttl) as lock:
        say("has", lock.token)
        lock.lost.wait()


if __name__ == "__main__":
    if sys.argv[4] == "sync":
        keep_in_sync(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    else:
        asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]))
