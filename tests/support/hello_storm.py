"""Connections that begin TLS handshakes and do not end them, from other addresses than the nodes':
`python -m tests.support.hello_storm PORT COUNT KIND ADDRESSES`.

KIND: `whole` sends a hello, `half` half of it, `drip` a byte of it now and then, `stuffed` a hello and
much more, `again` a hello, and makes new connections all the time. Prints a line when all are connected; ends
when its input does.
"""

from __future__ import annotations

import resource
import select
import socket
import ssl
import sys
from ipaddress import ip_address
from itertools import cycle

STRANGER = "127.0.0.9"
"""To a node at 127.0.0.1 an address like any other's. Where ADDRESSES are several, those behind it, too."""
DRIP_S = 0.3


def hello() -> bytes:
    """What a TLS client says first."""
    context = ssl.create_default_context()
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without an answer")


def main() -> None:
    """Command line."""
    port, count, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    first_ip = int(ip_address(STRANGER))
    strangers = cycle(str(ip_address(first_ip + number)) for number in range(int(sys.argv[4])))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    first = hello()
    stuffed = first + b"\x16\x03\x03\x40\x00".ljust(5 + (16 << 10), b"x") * 16
    said = {
        "whole": first,
        "stuffed": stuffed,
        "half": first[: len(first) // 2],
        "drip": first[:1],
        "again": first,
    }[kind]

    def connect() -> socket.socket:
        made = socket.socket()
        made.bind((next(strangers), 0))
        made.connect(("127.0.0.1", port))
        made.setblocking(False)
        made.send(said)
        return made

    opened = [connect() for _ in range(count)]
    print(f"{len(opened)} connected", flush=True)
    at = 1
    while not select.select([sys.stdin], [], [], 0 if kind == "again" else DRIP_S)[0]:
        if kind == "again":
            opened.pop(0).close()
            opened.append(connect())
            continue
        if kind != "drip" or at >= len(first) - 1:
            continue
        for each in opened:
            try:
                each.send(first[at : at + 1], socket.MSG_NOSIGNAL)
            except OSError:
                continue  # the node has ended it
        at += 1
    for each in opened:
        each.close()


if __name__ == "__main__":
    main()
