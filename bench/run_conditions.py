"""Measures the cost of conditional appends for a leader: `python -m bench.run_conditions`.

Instructions that a Produce request takes from its bytes to its answer, without network and disk, counted by
valgrind, which other work on the machine does not disturb. Three cases for each shape of a batch: no window
open, a window open and no condition, a condition on every batch. `--base DIR` counts another source tree of
quorumd without a window as well: what conditions cost those who do not use them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SHAPES = {"1 record": 1, "10 records": 10, "200 records": 200}
CASES = ("closed", "open", "conditional")
BATCHES = (200, 600)
"""Counted twice, so that what comes before and after them cancels out."""
VALUE_BYTES = 100
KEYS = 5_000
_TOTALS = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)
_TREE = Path(__file__).resolve().parents[1]


# -- in the process that is counted


class _Connection:
    """Takes answers."""

    in_flight_bytes = 0
    is_open = True
    peer = "bench"

    def send(self, request: Any, buffers: Sequence[bytes]) -> None:
        answer = b"".join(buffers)
        assert b"\x00\x57" not in answer[:40], "refused"


class _Partition:
    """A leader that commits at once."""

    leader_id = 1
    leader_epoch = 5
    log_start_offset = 0
    append_refusal = append_obstacle = None  # the older name: of --base trees
    log_end_offset = committed_offset = 0
    handler: Any = None

    def __init__(self, topic: Any) -> None:
        self.topic = topic

    def append(self, token: int, record_count: int) -> None:
        from quorumd.raft.effects import AppendClient

        base = self.log_end_offset
        self.log_end_offset = base + record_count
        effect = AppendClient(write=1, base_offset=base, epoch=self.leader_epoch, token=token)
        self.handler.take_batches(effect)
        self.committed_offset = self.log_end_offset
        # The handler itself: of older --base trees.
        getattr(self.handler, "parked", self.handler).on_high_watermark(self.log_end_offset)


class _Runtime:
    """A clock that stands still, and no timers."""

    def monotonic_s(self) -> float:
        return 1.0

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def call_at(self, when: float, act: Callable[[], None]) -> None:
        return None


def work(case: str, records: int, batches: int) -> None:
    """So many Produce requests in one case."""
    from quorumd.server.model.metrics import Metrics
    from quorumd.server.model.producer_state import ProducerState
    from quorumd.server.model.topic import METADATA
    from quorumd.server.net.inbound_request import InboundRequest
    from quorumd.server.requests.produce import ProduceHandler

    soon: list[Callable[[], None]] = []
    partition: Any = _Partition(METADATA)
    runtime: Any = _Runtime()
    connection: Any = _Connection()
    handler = ProduceHandler(
        partition, partition, ProducerState(), Metrics(), 1 << 20, runtime, soon.append
    )
    partition.handler = handler

    def produce(body: bytes) -> None:
        handler.handle(InboundRequest(connection, 0, 9, 1, body, 0, 0))
        while soon:
            soon.pop()()

    if case != "closed":
        produce(_body([b"first"], since=0))
    offset = partition.log_end_offset
    for i in range(batches):
        keys = [b"key/%d" % ((i * records + at) % KEYS) for at in range(records)]
        produce(_body(keys, since=offset if case == "conditional" else None))
        offset += records
    assert partition.log_end_offset == offset, "all were appended"


def _body(keys: Sequence[bytes], since: int | None) -> bytes:
    from quorumd.wire.codec import encode
    from quorumd.wire.messages.produce import (
        ProduceRequest,
        ProduceRequestPartition,
        ProduceRequestTopic,
    )
    from quorumd.wire.metadata_topic import TOPIC
    from quorumd.wire.records import Record, build_batch

    header = () if since is None else (("quorumd.if-unchanged-since", b"%d" % since),)
    batch = build_batch(
        [Record(0, 1, key, b"v" * VALUE_BYTES, () if i else header) for i, key in enumerate(keys)]
    )
    partition = ProduceRequestPartition(index=0, records=batch)
    topic = ProduceRequestTopic(name=TOPIC, partition_data=(partition,))
    return encode(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=(topic,)), 9)


# -- in the process that counts


def instructions(tree: Path, case: str, records: int, batches: int) -> int:
    """Of a process that does this work with the sources in `tree`, making the requests included."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        subprocess.run(
            [
                *("valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={out}"),
                *(sys.executable, __file__, "--work", case, str(records), str(batches)),
            ],
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        found = _TOTALS.search(out.read_text())
    assert found is not None, "callgrind has written its totals"
    return int(found[1])


def per_batch(tree: Path, case: str, records: int) -> float:
    """Instructions for one more batch. What makes the requests is counted, and taken off: case `make`."""
    few, many = (
        instructions(tree, case, records, count)
        - instructions(tree, f"make-{case}", records, count)
        for count in BATCHES
    )
    return (many - few) / (BATCHES[1] - BATCHES[0])


def make(case: str, records: int, batches: int) -> None:
    """Only the requests."""
    from quorumd.server.requests.produce import ProduceHandler

    assert callable(ProduceHandler), "imported as for the work"
    for i in range(batches):
        keys = [b"key/%d" % ((i * records + at) % KEYS) for at in range(records)]
        _body(keys, since=1_000 + i * records if case == "make-conditional" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, help="another source tree")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        case, records, batches = options.work
        run = make if case.startswith("make-") else work
        run(case, int(records), int(batches))
        return
    for shape, records in SHAPES.items():
        costs = {case: per_batch(_TREE, case, records) for case in CASES}
        closed = costs["closed"]
        row = [f"{case} {cost:,.0f}" for case, cost in costs.items()]
        row += [f"{case}: {closed / costs[case]:.3f} as many" for case in CASES[1:]]
        if options.base:
            base = per_batch(options.base.resolve(), "closed", records)
            row += [f"base {base:,.0f}", f"closed: {base / closed:.3f} as many as base"]
        print(f"{shape}: {'; '.join(row)}", flush=True)


if __name__ == "__main__":
    main()
