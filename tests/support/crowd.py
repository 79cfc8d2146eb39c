"""Idle clients by the hundred, in a process of their own: who is turned away comes back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from quorumd.wire.messages.api_versions import ApiVersionsRequest
from tests.support.raw_client import frame, request

BACK_S = 0.05


def hello(client_id: str) -> bytes:
    """With what most clients begin."""
    message = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    return request(18, 4, message, client_id=client_id)


HELLOS = (b"", frame(hello("somebody")), frame(hello("raft-client-1")), frame(hello("quorumctl")))
"""Some say nothing; some say that they are a voter or an operator, which on one host nothing belies."""


async def idle_for_ever(port: int, said: bytes) -> None:
    """Connect, say this, and wait to be turned away; again and again."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(said)
                while await reader.read(4096):
                    pass
            finally:
                writer.transport.abort()
        await asyncio.sleep(BACK_S)


async def main(per_node: int, ports: Sequence[int]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number in range(per_node):
            for port in ports:
                tasks.create_task(idle_for_ever(port, HELLOS[number % len(HELLOS)]))
        await asyncio.sleep(1.0)
        print("here", flush=True)


@contextmanager
def crowd(ports: Sequence[int], per_node: int) -> Iterator[None]:
    """So many idle clients at each of these ports."""
    command = [sys.executable, "-m", "tests.support.crowd", str(per_node), *map(str, ports)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"here\n"
            yield
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
