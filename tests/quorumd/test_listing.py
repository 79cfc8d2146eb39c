"""The keys of claims and what is permitted in them, who is listed in which order, and a lock taken away."""

from __future__ import annotations

from typing import Any

import pytest

from quorumd import ClaimKind, Lock, QuorumClient, force_unlock
from quorumd.client.coordination.claim_record import ClaimRecord
from quorumd.client.coordination.keys import (
    COMMENT_CHARACTERS_MAX,
    NAME_BYTES_MAX,
    TTL_S_MAX,
    TTL_S_MIN,
    VALUE_BYTES_MAX,
    Place,
    check_name,
    check_texts,
    place_of,
    ttl_ms_of,
)
from quorumd.client.coordination.listing import claimed_names
from quorumd.client.view import KeyValueEntry
from quorumd.wire.messages.produce import ProduceRequest, ProduceResponse
from quorumd.wire.records import Record, build_batch
from tests.quorumd.fake_quorum import FakeQuorum
from tests.quorumd.test_lock import with_quorum

ONE, TWO, THREE = (digit * 32 for digit in "123")


def entry(claim: str, offset: int, **members: Any) -> KeyValueEntry:
    record = ClaimRecord(f"owner {claim[0]}", "h", 1, "", "", 10_000, claim, THREE)
    return KeyValueEntry(record._replace(**members).encoded(), offset, 7)


@pytest.mark.parametrize("kind", list(ClaimKind))
@pytest.mark.parametrize("name", ["a", "jobs/nightly", "/", "a//b/", "ü", f"a/{ONE}"])
def test_a_key_stands_for_its_place_and_for_no_other(kind: ClaimKind, name: str) -> None:
    for place in (Place(kind, name), Place(kind, name, ONE)):
        assert place_of(place.key) == place


@pytest.mark.parametrize(
    "key",
    [
        b"quorumd.locks",
        b"quorumd.locks/",
        b"quorumd.locks.queue/" + ONE.encode(),
        b"quorumd.locks.queue//" + ONE.encode(),
        b"quorumd.locks.queue/a/" + ONE[:-1].encode(),
        b"quorumd.locks.queue/a/" + ONE.encode() + b"1",
        b"quorumd.other/a",
        b"quorumd.locks/\xff",
        b"locks/a",
    ],
)
def test_other_keys_are_no_places(key: bytes) -> None:
    assert place_of(key) is None


def test_limits_are_inclusive_and_of_bytes_or_characters() -> None:
    assert (ttl_ms_of(TTL_S_MIN), ttl_ms_of(TTL_S_MAX)) == (1000, 86_400_000)
    assert ttl_ms_of(2.5) == 2500
    assert check_name("ü" * (NAME_BYTES_MAX // 2))
    longest = "ü" * COMMENT_CHARACTERS_MAX
    check_texts(owner=longest, comment=longest, value="ü" * (VALUE_BYTES_MAX // 2))
    with pytest.raises(ValueError, match="bytes long"):
        check_name("ü" * (NAME_BYTES_MAX // 2) + "u")
    for texts in (
        {"owner": longest + "x", "comment": "", "value": ""},
        {"owner": None, "comment": longest + "x", "value": ""},
        {"owner": None, "comment": "", "value": "ü" * (VALUE_BYTES_MAX // 2) + "u"},
    ):
        with pytest.raises(ValueError, match=r"give"):
            check_texts(**texts)


def test_those_who_wait_are_listed_by_their_places_and_names_ascending() -> None:
    jobs = Place(ClaimKind.LOCK, "jobs/b")
    entries = [
        (jobs._replace(claim=ONE).key, entry(ONE, 9, queued=3)),
        (jobs._replace(claim=TWO).key, entry(TWO, 5)),
        (jobs.key, entry(THREE, 8, token=2)),
        (Place(ClaimKind.LOCK, "jobs/a", TWO).key, entry(TWO, 6)),
        (Place(ClaimKind.LOCK, "other").key, entry(TWO, 1)),
        (Place(ClaimKind.ELECTION, "jobs/b").key, entry(TWO, 1)),
    ]
    first, second = claimed_names(entries, ClaimKind.LOCK, prefix="jobs/")
    assert (first.name, first.holder, len(first.waiters)) == ("jobs/a", None, 1)
    assert second.holder is not None
    assert (second.name, second.holder.owner, second.holder.token) == ("jobs/b", "owner 3", 2)
    assert [each.owner for each in second.waiters] == ["owner 1", "owner 2"]
    assert {each.token for each in second.waiters} == {-1}


def test_a_lock_is_taken_away_by_its_token_however_often_it_was_renewed() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        lock = Lock(client, "a", ttl=1)
        token = await lock.acquire()
        await quorum.appended.wait()
        assert not await force_unlock(client, "a", token + 1)
        assert await force_unlock(client, "a", token)
        await lock.lost.wait()
        await lock.release()

    with_quorum(story)


def test_a_renewal_that_comes_between_does_not_keep_a_lock_from_being_taken_away() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        lock = Lock(client, "a", ttl=600)
        token = await lock.acquire()
        (held,) = quorum.records()
        renewed = ClaimRecord("o", "h", 1, "", "", 600_000, ONE, TWO, attempt=2, token=token)

        async def renew_before(node_id: int, request: ProduceRequest) -> ProduceResponse:
            del quorum.handlers[ProduceRequest]
            record = Record(timestamp=1, key=held.key, value=renewed.encoded())
            quorum.append(build_batch([record]))
            return quorum.nodes[node_id]._produce(request)

        quorum.handlers[ProduceRequest] = renew_before
        assert await force_unlock(client, "a", token)
        assert [record.value for record in quorum.records()][2:] == [None]
        await lock.release()

    with_quorum(story)
