"""The way of a lone record through a quorum, each hop in microseconds: `python -m bench.timeline`.

One client sends a record at a time to three real nodes, which note when they read, send, write and sync
(trace_calls.c, preloaded; other nodes know nothing of it). A record's hops lie end to end from the client's
request to its response; what the leader's own disk does lies beside them. `--picture FILE` draws it.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.builds import build
from bench.calls import Calls, What, connections_of, read_calls, tracing
from bench.common import NODES, Quorum, leader_of, running_quorum, write_json
from bench.filling import produce_frame

HOPS = (
    "request on its way to the leader",
    "leader: check, append, answer the follower's fetch",
    "records on their way to the follower",
    "follower: append, hand over to the disk thread",
    "follower: write",
    "follower: sync",
    "follower: back from the disk thread, next fetch",
    "fetch on its way to the leader",
    "leader: commit, response",
    "response on its way to the client",
)
BESIDE = ("leader: until its disk thread writes", "leader: write", "leader: sync")


class Way(NamedTuple):
    """One record's times, in ns."""

    moments: tuple[int, ...]
    """Moments at which hops begin, and the end of the last one."""
    beside: tuple[int, ...]
    """The same of `BESIDE`; begins with the leader's read."""


class Sight(NamedTuple):
    """Observations of a quorum: calls, and the descriptors of each connection."""

    leader: Calls
    client: Sequence[int]
    """The leader's connections to the client."""
    followers: Sequence[tuple[Calls, Sequence[int], Sequence[int]]]
    """Of each: its calls, its connections to the leader, and the leader's to it."""


def way_of(sight: Sight, sent_ns: int, answered_ns: int) -> Way | None:
    """The hops of the record that was sent and answered then; None if they were not all seen."""
    read = sight.leader.first(What.READ, sent_ns, answered_ns, sight.client)
    if read is None:
        return None
    answer = sight.leader.first(What.SEND, read.end_ns, answered_ns, sight.client)
    written = sight.leader.first(What.WRITE_FILE, read.end_ns, answered_ns)
    if answer is None or written is None:
        return None
    synced = sight.leader.first(What.SYNC, written.end_ns, answered_ns + 1_000_000_000)
    ways = [
        way
        for calls, to_leader, to_follower in sight.followers
        if (way := _by(sight.leader, calls, to_leader, to_follower, read.end_ns, answer.begin_ns))
    ]
    if not ways or synced is None:
        return None
    by = min(ways, key=lambda way: way[-1])
    return Way(
        (sent_ns, read.end_ns, *by, answer.begin_ns, answered_ns),
        (read.end_ns, written.begin_ns, written.end_ns, synced.end_ns),
    )


def _by(
    leader: Calls,
    follower: Calls,
    to_leader: Sequence[int],
    to_follower: Sequence[int],
    after_ns: int,
    before_ns: int,
) -> tuple[int, ...] | None:
    """The seven moments of the way through one follower; None if the leader did not wait for it."""
    sent = leader.first(What.SEND, after_ns, before_ns, to_follower)
    received = sent and follower.first(What.READ, sent.begin_ns, before_ns, to_leader)
    written = received and follower.first(What.WRITE_FILE, received.end_ns, before_ns)
    synced = written and follower.first(What.SYNC, written.end_ns, before_ns)
    fetch = synced and follower.first(What.SEND, synced.end_ns, before_ns, to_leader)
    back = fetch and leader.first(What.READ, fetch.begin_ns, before_ns, to_follower)
    if not (sent and received and written and synced and fetch and back):
        return None
    return (
        sent.begin_ns,
        received.end_ns,
        written.begin_ns,
        written.end_ns,
        synced.end_ns,
        fetch.begin_ns,
        back.end_ns,
    )


def look(quorum: Quorum, folder: Path, client_port: int) -> Sight:
    """To be called while all connections are up."""
    leader = leader_of(quorum)
    port = quorum.ports[leader]
    at_leader = connections_of(quorum.pid(leader))
    client = [fd for fd, (_, remote) in at_leader.items() if remote == client_port]
    followers = []
    for index in range(NODES):
        if index == leader:
            continue
        pid = quorum.pid(index)
        mine = {fd: local for fd, (local, remote) in connections_of(pid).items() if remote == port}
        back = [fd for fd, (_, remote) in at_leader.items() if remote in mine.values()]
        followers.append((read_calls(folder, pid), list(mine), back))
    return Sight(read_calls(folder, quorum.pid(leader)), client, followers)


def send_records(client: socket.socket, count: int, value_bytes: int) -> list[tuple[int, int]]:
    """When each was sent and answered, ns; one at a time."""
    frame, times = produce_frame(value_bytes), []
    for _ in range(count):
        sent_ns = time.monotonic_ns()
        client.sendall(frame)
        got = client.recv(65536)
        while len(got) < 4 or len(got) < 4 + int.from_bytes(got[:4], "big"):
            got += client.recv(65536)
        times.append((sent_ns, time.monotonic_ns()))
    return times


def measure(where: str, folder: Path | None, records: int, value_bytes: int) -> list[Way]:
    """Ways of so many records through a fresh quorum of this build."""
    with build(where) as chosen, tempfile.TemporaryDirectory() as name:
        notes = Path(name)
        environ = {**chosen.environ, **tracing(notes)}
        with running_quorum(folder, command=chosen.command, environ=environ) as quorum:
            address = ("127.0.0.1", quorum.ports[leader_of(quorum)])
            with socket.create_connection(address) as client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                send_records(client, 200, value_bytes)
                times = send_records(client, records, value_bytes)
                sight = look(quorum, notes, client.getsockname()[1])
    ways = [way_of(sight, *each) for each in times]
    return [way for way in ways if way]


def hops(ways: Sequence[Way]) -> Mapping[str, list[float]]:
    """Microseconds of each hop and of all together, by name, for each record."""
    found: dict[str, list[float]] = {}
    for moments, names in ((0, HOPS), (1, BESIDE)):
        for number, name in enumerate(names):
            found[name] = [(way[moments][number + 1] - way[moments][number]) / 1000 for way in ways]
    found["request to response"] = [(way.moments[-1] - way.moments[0]) / 1000 for way in ways]
    return found


def table(ways: Sequence[Way]) -> str:
    """Median and quartiles of each hop."""
    lines = [f"{'us: median (quartiles)':56}"]
    for name, values in hops(ways).items():
        low, middle, high = statistics.quantiles(values, n=4)
        lines.append(f"{name:56}{middle:8.0f} ({low:.0f} to {high:.0f})")
    return "\n".join(lines)


def draw(ways: Sequence[Way], file: Path) -> None:
    """Median hops, end to end, and the leader's disk beside them."""
    # Loaded here: only who wants a picture needs it.
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    medians = {name: statistics.median(values) for name, values in hops(ways).items()}
    picture, ax = pyplot.subplots(figsize=(12, 6), layout="constrained")
    names = [*HOPS, *BESIDE]
    start = end = 0.0
    for number, name in enumerate(names):
        if name == BESIDE[0]:
            start = medians[HOPS[0]]
        color = "C1" if "sync" in name else "C0" if ":" in name else "C7"
        ax.barh(number, medians[name], left=start, color=color)
        ax.text(start + medians[name], number, f" {medians[name]:.0f} us", va="center")
        start += medians[name]
        end = max(end, start)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlabel(f"us since the client's request; medians of {len(ways)} records")
    ax.set_xlim(0, end * 1.15)
    picture.savefig(file)
    pyplot.close(picture)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--build", metavar="WHERE", default="", help="as in run_throughput --now")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="an .svg or .png")
    parser.add_argument("--folder", type=Path, help="where the nodes keep their data while it runs")
    parser.add_argument("--json", type=Path, help="file for the times of every record")
    args = parser.parse_args()
    ways = measure(args.build, args.folder, args.records, args.value_bytes)
    if len(ways) < 2:
        raise SystemExit("no record's way was seen as a whole")
    print(f"{len(ways)} of {args.records} records were seen as a whole")
    print(table(ways))
    if args.picture:
        draw(ways, args.picture)
    write_json(args.json, [way._asdict() for way in ways])


if __name__ == "__main__":
    main()
