"""A client works with one cluster: nodes that belong to another one by now are none of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quorumd import (
    EARLIEST,
    BatchCommitted,
    KeyValueView,
    OtherCluster,
    QuorumClient,
    Record,
)
from quorumd.client.leader import KnownCluster
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.records import build_batch
from tests.quorumd.fake_quorum import FakeQuorum

SAID = "belong to the cluster restored, and this client began with fake-cluster"


async def format_anew(quorum: FakeQuorum, records: int, cluster_id: str = "restored") -> None:
    """Another log, which is longer than the one before, in the same epochs and under the same addresses."""
    for node in quorum.nodes.values():
        await node.stop()
    quorum.log.clear()
    quorum.end_offset, quorum.cluster_id = 0, cluster_id
    for number in range(records):
        quorum.append(build_batch([Record(timestamp=5, key=b"new%d" % number, value=b"v")]))
    for node in quorum.nodes.values():
        await node.start()


def run(story: Callable[[FakeQuorum, QuorumClient], Awaitable[None]], **options: str) -> None:
    async def whole() -> None:
        async with (
            FakeQuorum(**options) as quorum,  # type: ignore[arg-type]  # the cluster id
            QuorumClient(quorum.addresses, timeout_ms=3000) as client,
        ):
            for key in (b"a", b"b"):
                quorum.append(build_batch([Record(timestamp=5, key=key, value=b"old")]))
            await asyncio.wait_for(story(quorum, client), 20)

    asyncio.run(whole())


async def lacks(view: KeyValueView, key: bytes) -> None:
    while True:
        assert view.get(key) is None
        await asyncio.sleep(0.01)


def produced(quorum: FakeQuorum) -> int:
    return sum(isinstance(request, ProduceRequest) for _, request in quorum.requests)


def test_a_view_does_not_go_on_in_the_log_of_another_cluster() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with KeyValueView(client) as view:
            entry = view.get(b"a")
            assert entry is not None
            assert entry.value == b"old"
            await format_anew(quorum, 50)
            with pytest.raises(OtherCluster, match=SAID):
                await lacks(view, b"new1")
            with pytest.raises(OtherCluster, match=SAID):
                await view.update(b"a", lambda value: b"changed")
            assert not produced(quorum)

    run(story)


def test_nor_writes_a_client_there_that_has_not_written_before() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        events = client.follow()
        while not isinstance(await anext(events), BatchCommitted):
            pass
        await format_anew(quorum, 50)
        with pytest.raises(OtherCluster, match=SAID):
            await client.append([Record(key=b"a")], timeout_ms=2000)
        assert not produced(quorum)
        await events.aclose()

    run(story)


def test_the_same_cluster_that_is_back_is_gone_on_with() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(key=b"a")])
        await format_anew(quorum, 0, cluster_id="fake-cluster")
        assert await client.append([Record(key=b"a")]) == [0]

    run(story)


def test_a_node_that_does_not_know_its_cluster_yet_is_believed() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(key=b"a")])
        await format_anew(quorum, 0, cluster_id="first")
        assert await client.append([Record(key=b"a")]) == [0]
        await format_anew(quorum, 0, cluster_id="")
        assert await client.append([Record(key=b"a")]) == [0]

    run(story, cluster_id="")


def test_a_new_client_works_with_the_new_cluster() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(key=b"a")])
        await format_anew(quorum, 3)
        with pytest.raises(OtherCluster, match=SAID):
            await client.list_offsets(EARLIEST)
        async with QuorumClient(quorum.addresses) as other:
            assert await other.append([Record(key=b"a")]) == [3]

    run(story)


@pytest.mark.parametrize("untold", [None, ""])
def test_a_node_that_does_not_know_its_cluster_yet_changes_nothing(untold: str | None) -> None:
    known = KnownCluster()
    for found in (untold, "one", untold):
        known.check(found)
    with pytest.raises(OtherCluster):
        known.check("another")
    assert known.id == "one"
