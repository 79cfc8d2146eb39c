"""Display of the demo: states of its nodes, changes between two looks, things to try next.

The states come from the nodes' /status pages and from their processes. Knows no keys; `rich` is imported
with the first table.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorumd.raft.types import Address
from quorumd.server.demo.nodes import ClientFiles
from quorumd.wire.metadata_topic import TOPIC

if TYPE_CHECKING:
    from rich.console import RenderableType

STATUS_BYTES_MAX = 1 << 20
_STYLES = {"leader": "bold green", "follower": "", "killed": "red", "frozen": "cyan"}
_COLUMNS = ("node", "port", "pid", "role", "epoch", "log end", "high\nwatermark", "lag", "since")
_LEFT = {"node", "role"}

Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One line of the table. None stands for what is not known."""

    node_id: int
    address: Address
    pid: int | None
    role: str
    since_s: float
    epoch: int | None = None
    log_end: int | None = None
    high_watermark: int | None = None
    lag: int | None = None

    def cells(self) -> tuple[str, ...]:
        """The columns of the table as text."""
        return (
            str(self.node_id),
            str(self.address.port),
            _number(self.pid),
            self.role,
            _number(self.epoch),
            _number(self.log_end),
            _number(self.high_watermark),
            _number(self.lag),
            duration(self.since_s),
        )

    def line(self) -> str:
        """A line to print where no table can be shown."""
        return (
            f"node {self.node_id} is {self.role}: pid {_number(self.pid)}, epoch "
            f"{_number(self.epoch)}, log end {_number(self.log_end)}, high watermark "
            f"{_number(self.high_watermark)}, lag {_number(self.lag)}"
        )


def _number(value: int | None) -> str:
    return "-" if value is None or value < 0 else str(value)


def duration(seconds: float) -> str:
    """As people say it: 7s, 3m 05s, 2h 01m."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


async def read_status(address: Address, timeout_s: float) -> Status | None:
    """The contents of a node's /status page; None if the node does not respond in time."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = b""
                while len(answer) < STATUS_BYTES_MAX and (data := await reader.read(1 << 16)):
                    answer += data
            finally:
                writer.transport.abort()
        status = json.loads(answer.partition(b"\r\n\r\n")[2])
    except (OSError, TimeoutError, ValueError):
        return None
    return status if isinstance(status, dict) else None


def leader_of(statuses: Sequence[Status | None]) -> Status | None:
    """The status of the leader of the highest epoch."""
    leaders = [status for status in statuses if status and status.get("role") == "leader"]
    return max(leaders, key=lambda status: int(status["epoch"]), default=None)


def lag_of(leader: Status | None, node_id: int, storage_id: object) -> int | None:
    """Number of records that a replica lacks by the leader's status, None if the status does not say."""
    if leader is None:
        return None
    for row in leader.get("replicas", ()):
        if row["id"] == node_id and storage_id in (None, row["storage_id"]):
            return int(row["lag"]) if row["log_end_offset"] >= 0 else None
    return None


def differences(old: Sequence[NodeState], new: Sequence[NodeState]) -> list[NodeState]:
    """The states whose process, role or epoch is another one than before."""
    known = {state.node_id: (state.pid, state.role, state.epoch) for state in old}
    return [
        state for state in new if known.get(state.node_id) != (state.pid, state.role, state.epoch)
    ]


def table(states: Sequence[NodeState], events: Sequence[str], keys: str) -> RenderableType:
    """The table, the latest events below it, and the keys; fits 80 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in _COLUMNS:
        grid.add_column(column, justify="left" if column in _LEFT else "right", no_wrap=True)
    for state in states:
        style = _STYLES.get(state.role.partition(" ")[0], "yellow")
        grid.add_row(*state.cells(), style=style)
    return Group(
        grid,
        *(Text(f" {event}", no_wrap=True, overflow="ellipsis") for event in events),
        Text(f" {keys}", style="dim", no_wrap=True, overflow="ellipsis"),
    )


def own_command(name: str) -> str:
    """Command line by which a user calls a command of this package: its name if the shell finds it."""
    beside = Path(sys.executable).parent / name
    return name if shutil.which(name) or not beside.exists() else shlex.quote(str(beside))


def hints(
    addresses: Sequence[Address],
    pages: Sequence[Address],
    log_paths: Sequence[Path],
    client: ClientFiles | None,
) -> list[str]:
    """Addresses to look at and commands to try, for these nodes; with TLS if there are files
    of a client."""
    servers = ",".join(str(address) for address in addresses)
    ctl = own_command("quorumctl")
    kafka = f"--bootstrap-server {servers} --topic {TOPIC}"
    kcat, arguments = f"kcat -b {servers}", f"bootstrap_servers={servers!r}"
    exports, refused = [f"  export QUORUM_BOOTSTRAP_SERVERS={servers}"], []
    if client is not None:
        store, ca = shlex.quote(str(client.store)), shlex.quote(str(client.ca))
        properties = shlex.quote(str(client.properties))
        exports.append(f"  export QUORUM_COMMAND_CONFIG={properties}")
        kafka += f" --command-config {properties}"
        kcat += (
            f" -X security.protocol=ssl -X ssl.ca.location={ca} -X ssl.certificate.location={store}"
            f" -X ssl.key.location={store}"
        )
        arguments += (
            f", security_protocol='SSL', ssl_cafile={str(client.ca)!r}, "
            f"ssl_certfile={str(client.store)!r}, ssl_keyfile={str(client.store)!r}"
        )
        refused = [
            "Refused, because no certificate is shown:",
            f"  env -u QUORUM_COMMAND_CONFIG {ctl} describe",
            f"  openssl s_client -ign_eof -connect {addresses[0]} -CAfile {ca} </dev/null",
        ]
    return [
        f"In a browser: {'  '.join(f'http://{page}/' for page in pages)}",
        "In another terminal:",
        *exports,
        f"  {ctl} describe --status",
        f"  {ctl} append hello world",
        f"  {ctl} tail --from-beginning --follow",
        *refused,
        "With Kafka's own clients (there are no groups: name the partition):",
        f"  kafka-console-producer.sh {kafka}",
        f"  kafka-console-consumer.sh {kafka} --partition 0 --offset earliest",
        f"  {kcat} -t {TOPIC} -p 0 -P        (one record per line)",
        f"  {kcat} -t {TOPIC} -p 0 -C -o beginning",
        "In Python (pip install kafka-python):",
        "  from kafka import KafkaProducer",
        f"  producer = KafkaProducer({arguments})",
        f"  print(producer.send({TOPIC!r}, b'hello', partition=0).get(10).offset)",
        f"Log files: {' '.join(str(path) for path in log_paths)}",
    ]
