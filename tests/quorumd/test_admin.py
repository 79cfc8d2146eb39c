"""The membership as it is described, in the documents and for programs."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from quorumd import (
    ChangeProgress,
    ChangeRefused,
    ChangeTimedOut,
    Endpoint,
    QuorumAdmin,
    QuorumUnavailable,
    ReplicaKey,
    ReplicaNotFound,
)
from quorumd.cli.main import cli
from quorumd.client.voter_changes import DESCRIBE_TIMEOUT_MS
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponseListener,
)
from quorumd.wire.schema import Message
from tests.quorumd.conftest import Done
from tests.quorumd.fake_quorum import FakeQuorum
from tests.quorumd.fake_voters import (
    BEHIND,
    LONG_MS,
    FakeVoters,
    key_of,
    pending,
    uuid_of,
    uuid_text,
)

Run = Callable[..., Done]
ROOT = Path(__file__).parents[2]


# --- describe


def test_a_status_shows_what_changes_and_what_it_waits_for(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.committed = [key_of(1), key_of(2)]
    fake.observers, fake.target = [key_of(4), key_of(5)], (3, 4, 5)
    fake.silent_ms[key_of(5)] = LONG_MS
    fake.pending = [
        pending("add", key_of(4), BEHIND),
        pending("reassign", ReplicaKey(-1, uuid_of(0)), ""),
    ]
    out = quorumctl("describe").out
    rows = {line[:24].strip(): line[24:] for line in out.splitlines() if line[0] != " "}
    assert rows["CommittedVoters:"] == f"1  {uuid_text(1)}"
    assert f"\n{'':24}2  {uuid_text(2)}\n" in out
    assert rows["TargetVoters:"] == "3, 4, 5"
    assert rows["PendingChanges:"] == f"add {key_of(4)}, for 12 s: {BEHIND}"
    assert f"\n{'':24}reassign, for 12 s: changes that were asked for before\n" in out
    assert rows["CouldBeVoters:"] == f"4  {uuid_text(4)}  CONTROLLER://127.0.0.1:20004"
    assert re.search(rf"^ +5  {uuid_text(5)}  \S+:20005  fetched 60 s ago$", out, re.MULTILINE)


def test_a_description_for_programs_has_the_changes(fake: FakeVoters, quorumctl: Run) -> None:
    told = json.loads(quorumctl("describe", "-o", "json").out)
    assert (told["committed_voters"], told["target_voters"], told["pending_changes"]) == (
        *(None, None),
        [],
    )
    fake.committed, fake.target = [key_of(1)], (3, 4)
    fake.pending = [pending("add", key_of(4), BEHIND)]
    told = json.loads(quorumctl("describe", "-o", "json").out)
    assert told["committed_voters"] == [{"replica_id": 1, "replica_uuid": uuid_text(1)}]
    assert told["target_voters"] == [3, 4]
    assert told["pending_changes"] == [
        {
            "kind": "add",
            "replica_id": 4,
            "replica_uuid": uuid_text(4),
            "waiting_ms": 12_000,
            "waits_for": BEHIND,
        }
    ]


def test_of_two_storage_ids_under_the_leaders_id_the_one_that_is_up_to_date_leads(
    fake: FakeVoters, quorumctl: Run
) -> None:
    fake.quorum.elect(3)
    fake.voters.append(key_of(3, 1))
    fake.silent_ms[key_of(3)] = LONG_MS
    lines = quorumctl("describe", "--replication").out.splitlines()
    roles = {line.split()[1]: line.split()[-1] for line in lines[1:]}
    assert roles[uuid_text(3, 1)] == "Leader"
    assert roles[uuid_text(3)] == "Follower"


# --- the documents


def test_the_commands_in_the_documents_are_ones_that_exist() -> None:
    text = "".join((ROOT / name).read_text() for name in ("README.md", "docs/operations.md"))
    lines = re.findall(r"^    (?:\$ )?quorumctl (.+)$", text, re.MULTILINE)
    known = {"add-voter", "remove-voter", "replace-voter", "reassign", "transfer-leader"}
    found = []
    for line in lines:
        name, *arguments = shlex.split(re.split(r"  +", line)[0])
        if name in known:
            context = cli.commands[name].make_context(name, ["-b", "db1:9093", *arguments])
            found.append(context.info_name)
    assert known <= set(found)


# --- the library


def test_a_program_changes_the_membership_of_a_quorum() -> None:
    async def run() -> None:
        async with FakeQuorum() as quorum, QuorumAdmin(quorum.addresses) as admin:
            fake = FakeVoters(quorum)
            fake.observers = [key_of(4)]
            added = await admin.add_voter(4)
            at = (Endpoint("CONTROLLER", "127.0.0.1", 20_004),)
            assert added == (key_of(4), at, False)
            assert (await admin.remove_voter(4)).key == key_of(4)
            await admin.reassign([2, 1])
            under_way = await admin.reassignment()
            assert under_way is not None
            assert (under_way.target, under_way.removing) == ((1, 2), (key_of(3),))
            assert (await admin.cancel_reassignment()).target_voters is None
            assert await admin.reassignment() is None
            assert (await admin.transfer_leader(3)).leader_id == 3
            fake.replace_disk(2)
            assert await admin.replace_voter(2) == (key_of(2, 1), key_of(2))
            assert (await admin.describe()).voter_ids == (1, 2, 3)
            with pytest.raises(ReplicaNotFound):
                await admin.add_voter(7, timeout_ms=300)
            with pytest.raises(ChangeRefused):
                await admin.remove_voter(7)
            fake.pending = [pending("remove", key_of(1), "something")]
            fake.gate.clear()
            with pytest.raises(ChangeTimedOut) as caught:
                await admin.remove_voter(1, timeout_ms=1500)
            assert caught.value.waits_for == "something"

    asyncio.run(run())


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_voter_counts_as_added_once_that_is_committed(is_committed: bool) -> None:
    async def run() -> None:
        async with FakeQuorum() as quorum, QuorumAdmin(quorum.addresses) as admin:
            fake = FakeVoters(quorum)
            fake.voters.append(key_of(4))
            fake.committed = None if is_committed else [key_of(1), key_of(2), key_of(3)]
            added = await admin.add_voter(4, key_of(4).uuid)
            assert (added.key, added.was_voter) == (key_of(4), True)
            assert len(fake.asked) == (0 if is_committed else 1)

    asyncio.run(run())


def test_a_wait_for_a_reassignment_keeps_its_limit_while_nobody_can_be_reached() -> None:
    async def run() -> None:
        async with FakeQuorum() as quorum, QuorumAdmin(quorum.addresses) as admin:
            for node in quorum.nodes.values():
                await node.stop()
            async with asyncio.timeout(DESCRIBE_TIMEOUT_MS / 1000 - 1):
                with pytest.raises(
                    ChangeTimedOut, match=r"within 0\.3 s: no leader can be reached"
                ):
                    await admin.wait_for_reassignment(timeout_ms=300)

    asyncio.run(run())


def test_the_end_of_a_reassignment_keeps_its_limit_where_the_leader_falls_silent_then() -> None:
    async def run() -> None:
        async with FakeQuorum() as quorum, QuorumAdmin(quorum.addresses) as admin:
            fake = FakeVoters(quorum)
            fake.target = (1, 2)
            describe = quorum.handlers[DescribeQuorumRequest]

            async def describe_before(node_id: int, request: Message) -> Message:
                if fake.asked:
                    await asyncio.sleep(60)
                return await describe(node_id, request)

            quorum.handlers[DescribeQuorumRequest] = describe_before
            async with asyncio.timeout(5):
                with pytest.raises(QuorumUnavailable):
                    await admin.cancel_reassignment(timeout_ms=1_000)
            assert fake.target is None

    asyncio.run(run())


def test_a_refusal_is_told_although_the_quorum_falls_silent_before_the_timeout() -> None:
    async def run() -> None:
        async with FakeQuorum() as quorum, QuorumAdmin(quorum.addresses) as admin:
            fake = FakeVoters(quorum)
            fake.observers = [key_of(3, 1)]
            words = f"the voter {key_of(3)} is alive"
            fake.refusals = [(ErrorCode.INVALID_REQUEST, words)] * 9
            describe = quorum.handlers[DescribeQuorumRequest]

            async def describe_until_refused(node_id: int, request: Message) -> Message:
                if len(fake.refusals) < 9:
                    await asyncio.Event().wait()
                return await describe(node_id, request)

            quorum.handlers[DescribeQuorumRequest] = describe_until_refused
            with pytest.raises(ChangeRefused, match=re.escape(words)):
                await admin.add_voter(3, key_of(3, 1).uuid, timeout_ms=1000)

    asyncio.run(run())


def test_what_a_program_does_with_progress_may_fail_it() -> None:
    def refuse(progress: ChangeProgress) -> None:
        raise ValueError(progress.waits_for)

    async def run() -> None:
        async with FakeQuorum() as quorum, QuorumAdmin(quorum.addresses) as admin:
            fake = FakeVoters(quorum)
            fake.observers = [key_of(4)]
            fake.pending = [pending("add", key_of(4), BEHIND)]
            fake.gate.clear()
            with pytest.raises(ValueError, match=BEHIND):
                await admin.add_voter(4, timeout_ms=1000, on_progress=refuse)

    asyncio.run(run())


def test_a_leader_that_hangs_is_left_by_who_did_not_look_before() -> None:
    async def run() -> None:
        async with FakeQuorum() as quorum, QuorumAdmin(quorum.addresses) as admin:
            fake = FakeVoters(quorum)
            fake.at_look = {2: lambda: quorum.elect(2)}
            reassign = quorum.handlers[AlterPartitionReassignmentsRequest]

            async def hang(node_id: int, request: Message) -> Message:
                if node_id == 1:
                    await asyncio.Event().wait()
                return await reassign(node_id, request)

            quorum.handlers[AlterPartitionReassignmentsRequest] = hang
            await admin.reassign([1, 2], timeout_ms=10_000)
            assert fake.target == (1, 2)

    asyncio.run(run())


def test_a_leader_that_is_reached_at_another_address_than_it_names_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only one that is deposed is left: here a proxy is in between."""
    elsewhere = DescribeQuorumResponseListener(name="CONTROLLER", host="10.0.0.1", port=9)
    monkeypatch.setattr(FakeVoters, "_listener", lambda self, key: elsewhere)

    async def run() -> None:
        async with FakeQuorum() as quorum, QuorumAdmin(quorum.addresses) as admin:
            fake = FakeVoters(quorum)
            fake.gate.clear()
            fake.at_look = {5: fake.gate.set}
            await admin.reassign([1, 2], timeout_ms=20_000)
            assert fake.asked == ["reassign (1, 2)"]

    asyncio.run(run())


def test_a_leader_that_gives_up_earlier_than_it_had_to_has_its_reason_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        async with FakeQuorum() as quorum, QuorumAdmin(quorum.addresses) as admin:
            fake = FakeVoters(quorum)
            fake.refusals = [(ErrorCode.REQUEST_TIMED_OUT, BEHIND)]
            pause = SimpleNamespace(uniform=lambda least_ms, most_ms: 60_000.0)
            monkeypatch.setattr("quorumd.client.timing._RANDOM", pause)
            with pytest.raises(QuorumUnavailable, match=BEHIND):
                await admin.reassign([1, 2], timeout_ms=2000)
            assert len(fake.asked) == 1

    asyncio.run(run())


@pytest.mark.parametrize(("timeout_ms", "for_leader_ms"), [(20_000, 19_500), (1_000, 750)])
def test_a_leader_has_less_time_than_who_waits_for_its_reason(
    timeout_ms: int, for_leader_ms: int
) -> None:
    async def run() -> None:
        async with FakeQuorum() as quorum, QuorumAdmin(quorum.addresses) as admin:
            fake = FakeVoters(quorum)
            await admin.reassign([1, 2], timeout_ms=timeout_ms)
            assert fake.target == (1, 2)
            (asked,) = (
                each.timeout_ms
                for _, each in quorum.requests
                if isinstance(each, AlterPartitionReassignmentsRequest)
            )
            assert 0 < asked <= for_leader_ms

    asyncio.run(run())
