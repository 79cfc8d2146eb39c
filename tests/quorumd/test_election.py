"""Elections and registrations as a program uses them, and what is over is deleted; the quorum is a fake."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import pytest

from quorumd import (
    ClaimKind,
    Election,
    KeyValueView,
    Lock,
    QuorumClient,
    QuorumUnavailable,
    Record,
    Registration,
    list_claims,
)
from quorumd.client.coordination.coordinator import SWEEP_S, Coordinator, boot_s
from quorumd.client.errors import ClientClosed
from quorumd.wire.conditions import KEY_BYTES_MAX
from quorumd.wire.messages.fetch import FetchRequest
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import FakeQuorum
from tests.quorumd.test_lock import until_waiting, with_quorum

REGISTRATIONS = b"quorumd.registrations/"


def sweep_often(client: QuorumClient) -> None:
    client.companion(Coordinator).sweep_s = (0.05, 0.1)


# --- elections


def test_one_leads_and_all_see_who() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with QuorumClient(quorum.addresses) as other:
            first = Election(client, "scheduler", value="10.0.0.1:80")
            second = Election(other, "scheduler", value="10.0.0.2:80")
            assert await second.leader() is None
            token = await first.campaign()
            campaign = asyncio.create_task(second.campaign())
            leader = await second.leader()
            assert leader is not None
            assert (leader.value, leader.token) == ("10.0.0.1:80", token)
            assert await first.resign()
            assert first.lost.is_set()
            assert await campaign > token
            async with aclosing(first.observe()) as leaders:
                async for leader in leaders:
                    if leader is not None and leader.value == "10.0.0.2:80":
                        break
            await second.resign()

    with_quorum(story)


def test_who_observes_sees_each_leader_and_that_there_is_none() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        seen: list[str | None] = []
        async with (
            QuorumClient(quorum.addresses) as other,
            aclosing(Election(other, "scheduler").observe()) as leaders,
        ):
            for value in ("a", "b"):
                assert await anext(leaders) is None
                async with Election(client, "scheduler", value=value):
                    leader = await anext(leaders)
                    assert leader is not None
                    seen.append(leader.value)
            assert await anext(leaders) is None
        assert seen == ["a", "b"]

    with_quorum(story)


def test_who_leads_or_has_resigned_knows_it_however_late_it_reads_the_log() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async def read_late(node: int, request: FetchRequest) -> Message:
            found = await quorum.nodes[node]._fetch(request)
            await asyncio.sleep(0.1)
            return found

        election = Election(client, "scheduler", value="a")
        assert await election.leader() is None
        quorum.handlers[FetchRequest] = read_late
        for _ in range(2):
            token = await election.campaign()
            leader = await election.leader()
            assert leader is not None
            assert leader.token == token
            await election.resign()
            async with aclosing(election.observe()) as leaders:
                assert await anext(leaders) is None

    with_quorum(story)


def test_who_observes_takes_no_time_while_nothing_changes() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        looks = 0

        def look_s() -> float:
            nonlocal looks
            looks += 1
            assert looks < 10_000, "it looks again and again"
            return boot_s()

        async with (
            QuorumClient(quorum.addresses) as other,
            aclosing(Election(other, "scheduler").observe()) as leaders,
        ):
            other.companion(Coordinator).now_s = look_s
            assert await anext(leaders) is None
            async with Election(client, "scheduler", value="a"):
                leader = await anext(leaders)
                assert leader is not None
                following = asyncio.ensure_future(anext(leaders))
                await asyncio.sleep(0.05)
                assert not following.done()
            assert await following is None

    with_quorum(story)


def test_a_leader_that_died_does_not_lead_when_its_ttl_is_over() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        gone = QuorumClient(quorum.addresses)
        await Election(gone, "scheduler", ttl=1).campaign()
        async with aclosing(Election(client, "scheduler").observe()) as leaders:
            assert await anext(leaders) is not None
            gone.close()
            async with asyncio.timeout(SWEEP_S[0] - 1):
                assert await anext(leaders) is None, "before its record is deleted"
        assert await Election(client, "scheduler").leader() is None

    with_quorum(story)


def test_who_has_asked_for_the_leader_or_observed_reads_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumd.client.coordination.coordinator.LINGER_S", 0.0)

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        election = Election(client, "scheduler")
        assert await election.leader() is None
        async with aclosing(election.observe()) as leaders:
            assert await anext(leaders) is None
        await asyncio.sleep(0.1)
        before = len(quorum.requests)
        await asyncio.sleep(0.6)
        assert len(quorum.requests) == before

    with_quorum(story)


def test_who_observes_is_told_that_the_client_was_closed() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with aclosing(Election(client, "scheduler").observe()) as leaders:
            assert await anext(leaders) is None
            following = asyncio.ensure_future(anext(leaders))
            await asyncio.sleep(0)
            client.close()
            async with asyncio.timeout(10):
                with pytest.raises(ClientClosed):
                    await following

    with_quorum(story)


def test_who_has_observed_need_not_know_of_each_change_any_more() -> None:
    """The third in a queue is told of what the two before it add."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        is_patient = asyncio.Event()

        def note(_: int, request: Message, answer: Message) -> Message:
            if isinstance(request, FetchRequest) and request.min_bytes > 1:
                is_patient.set()
            return answer

        async with QuorumClient(quorum.addresses) as other, Lock(client, "a", ttl=60):
            async with aclosing(Election(other, "scheduler").observe()) as leaders:
                assert await anext(leaders) is None
            tasks = []
            for count, own in enumerate((client, client, other), 1):
                tasks.append(asyncio.create_task(Lock(own, "a", ttl=60).acquire()))
                await until_waiting(client, count)
            quorum.before_answer = note
            async with asyncio.timeout(10):
                await is_patient.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    with_quorum(story)


def test_a_lock_and_an_election_of_one_name_have_nothing_to_do_with_each_other() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with Election(client, "a"), Registration(client, "a"):
            assert await list_claims(client) == []
            (found,) = await list_claims(client, ClaimKind.ELECTION)
            assert found.name == "a"

    with_quorum(story)


# --- registrations


async def registered(client: QuorumClient) -> dict[bytes, str]:
    async with KeyValueView(client, prefix=REGISTRATIONS) as view:
        return {
            key.removeprefix(REGISTRATIONS): json.loads(entry.value).get("value", "")
            for key, entry in view.items()
        }


def test_a_registration_is_there_as_long_as_it_is_meant_to_be() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with (
            Registration(client, "web/1", value="x", ttl=1) as one,
            Registration(client, "web/2", value="y"),
        ):
            await asyncio.sleep(1.5)
            assert await registered(client) == {b"web/1": "x", b"web/2": "y"}
            assert not one.replaced.is_set()
        assert await registered(client) == {}

    with_quorum(story)


def test_the_newest_of_a_name_replaces_the_one_before_and_is_left_alone_by_it() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with (
            QuorumClient(quorum.addresses) as other,
            Registration(client, "web/1", value="old") as old,
            Registration(other, "web/1", value="new") as new,
        ):
            await old.replaced.wait()
            assert not new.replaced.is_set()
            assert await registered(client) == {b"web/1": "new"}

    with_quorum(story)


@pytest.mark.long
def test_a_process_that_died_is_deleted_by_another_one_and_a_living_one_is_not() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        gone = QuorumClient(quorum.addresses)
        await Registration(gone, "web/1", ttl=1).__aenter__()
        await Election(gone, "scheduler", ttl=1).campaign()
        sweep_often(client)
        async with (
            Registration(client, "web/2", ttl=1),
            KeyValueView(client, prefix=b"quorumd.") as view,
        ):
            gone.close()
            while len(view) > 1:
                await view.wait_for(view.offset)
            assert await registered(client) == {b"web/2": ""}

    with_quorum(story)


@pytest.mark.long
def test_a_foreign_key_that_no_condition_takes_keeps_no_other_from_being_deleted() -> None:
    """A condition on its key would be refused, and with it the whole batch."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        gone = QuorumClient(quorum.addresses)
        await Registration(gone, "web/1", ttl=1).__aenter__()
        (claim,) = quorum.records()
        foreign = Record(key=REGISTRATIONS + bytes(KEY_BYTES_MAX), value=claim.value)
        await client.append([foreign])
        await Registration(gone, "web/2", ttl=1).__aenter__()
        sweep_often(client)
        async with (
            Registration(client, "web/3", ttl=1),
            KeyValueView(client, prefix=REGISTRATIONS + b"web/") as view,
        ):
            gone.close()
            async with asyncio.timeout(20):
                while len(view) > 1:
                    await view.wait_for(view.offset)

    with_quorum(story)


def test_what_was_deleted_in_an_outage_is_registered_again() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with Registration(client, "web/1", ttl=1) as registration:
            await client.append([Record(key=REGISTRATIONS + b"web/1", value=None)])
            async with KeyValueView(client, prefix=REGISTRATIONS) as view:
                while not view.items():
                    await view.wait_for(view.offset)
            assert not registration.replaced.is_set()

    with_quorum(story)


def test_and_at_once_however_long_its_ttl_is() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with Registration(client, "web/1", ttl=600), asyncio.timeout(10):
            await client.append([Record(key=REGISTRATIONS + b"web/1", value=None)])
            async with KeyValueView(client, prefix=REGISTRATIONS) as view:
                while not view.items():
                    await view.wait_for(view.offset)

    with_quorum(story)


def test_an_object_registers_once_at_a_time() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        registration = Registration(client, "web/1")
        with pytest.raises(RuntimeError, match="use `async with`"):
            _ = registration.replaced
        for _ in range(2):
            async with registration:
                with pytest.raises(RuntimeError, match="make another one"):
                    await registration.__aenter__()

    with_quorum(story)


def test_nor_does_it_register_twice_at_once() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        registration = Registration(client, "web/1")
        one, other = await asyncio.gather(
            registration.__aenter__(), registration.__aenter__(), return_exceptions=True
        )
        assert one is registration
        assert isinstance(other, RuntimeError)
        await registration.__aexit__(None, None, None)
        assert await registered(client) == {}

    with_quorum(story)


def test_what_could_not_be_registered_in_an_outage_can_be_afterwards() -> None:
    async def run() -> None:
        async with (
            FakeQuorum() as quorum,
            QuorumClient(quorum.addresses, timeout_ms=200) as client,
        ):
            registration = Registration(client, "web/1", value="x")
            quorum.elect(0)
            with pytest.raises(QuorumUnavailable):
                await registration.__aenter__()
            quorum.elect(2)
            client.timeout_ms = 5000
            async with registration:
                assert await registered(client) == {b"web/1": "x"}

    asyncio.run(run())


def test_an_outage_is_told_also_by_a_client_that_has_read_the_log() -> None:
    async def run() -> None:
        async with (
            FakeQuorum() as quorum,
            QuorumClient(quorum.addresses, timeout_ms=500) as client,
            Registration(client, "web/2", ttl=60),
        ):
            await client.append([Record(key=REGISTRATIONS + b"web/1", value=b"another's")])
            registration = Registration(client, "web/1", value="x")
            quorum.elect(0)
            async with asyncio.timeout(15):
                with pytest.raises(QuorumUnavailable):
                    await registration.__aenter__()
            quorum.elect(2)
            client.timeout_ms = 5000
            async with registration:
                assert await registered(client) == {b"web/1": "x", b"web/2": ""}

    asyncio.run(run())
