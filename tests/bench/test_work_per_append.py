"""What an append costs the nodes of a quorum, in calls: seen before it lands if it becomes more.

Counted on simulated machines, so that the number is the same in every run: the code of the product from the
request to the response, on leader and followers, without sockets and threads. `make instructions` measures
the same on real nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

import pytest

import quorumd
from simulation.scenario import Scenario

pytestmark = [
    pytest.mark.pure,  # machine code calls nothing that Python could count
    pytest.mark.skipif(
        sys.version_info[:2] != (3, 11), reason="the numbers are those of Python 3.11"
    ),
]

ROOT = Path(quorumd.__file__).resolve().parents[1]
PRODUCT = tuple(f"{ROOT}/{name}/" for name in ("raft", "server", "storage", "wire", "quorumd"))
LOOKERS_ON = tuple(f"{ROOT}/simulation/{name}" for name in ("observer.py", "checkers/", "clients/"))
"""Whatever these call is no work of a node."""
ROUNDS = 40
KEPT = {1: 896.8, 16: 235.4}
"""Clients that append at the same time, and calls per record of all three nodes."""
WORSE_MAX = 1.05


@dataclass(slots=True)
class Calls:
    """Calls of Python functions of the product, and calls of C functions by these."""

    count: int = 0


@contextmanager
def counted() -> Iterator[Calls]:
    calls, kinds = Calls(), dict[CodeType, str]()
    depth = 0  # of calls by those who look on

    def kind_of(code: CodeType) -> str:
        kind = kinds.get(code)
        if kind is None:
            file = str(Path(code.co_filename).resolve())
            kind = kinds[code] = (
                "looks on"
                if file.startswith(LOOKERS_ON)
                else "product"
                if file.startswith(PRODUCT)
                else ""
            )
        return kind

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal depth
        kind = kind_of(frame.f_code)
        if kind == "looks on":
            depth += (event == "call") - (event == "return")
        elif kind and not depth:
            calls.count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def calls_per_record(clients: int) -> float:
    quorum = Scenario(1)
    quorum.start()
    quorum.run(10_000, quorum.is_led)

    def append_round() -> None:
        appends = [quorum.append() for _ in range(clients)]
        quorum.run(5_000, lambda: all(each.acknowledged_us is not None for each in appends))
        assert all(each.acknowledged_us is not None for each in appends)

    append_round()  # what is made once
    with counted() as calls:
        for _ in range(ROUNDS):
            append_round()
    return calls.count / (ROUNDS * clients)


@pytest.mark.long
@pytest.mark.parametrize("clients", KEPT)
def test_an_append_takes_no_more_calls_than_it_did(clients: int) -> None:
    found, kept = calls_per_record(clients), KEPT[clients]
    assert found <= kept * WORSE_MAX, (
        f"{found:.1f} calls a record, and {kept} before: make it cheaper"
    )
    assert found * WORSE_MAX >= kept, (
        f"{found:.1f} calls a record, and {kept} before: keep the new number"
    )
