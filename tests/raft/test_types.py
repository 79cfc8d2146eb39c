"""Plain values: names and order of replicas, sets of voters, texts."""

from __future__ import annotations

from uuid import UUID

import pytest

from quorumd.raft.types import (
    Address,
    OffsetAndEpoch,
    ReplicaKey,
    SnapshotId,
    Voter,
    VoterSet,
    uuid_from_text,
    uuid_to_text,
)
from tests.raft.harness import endpoints, key, keyed_set, voter_set

ONE = UUID(int=1)
TEXT = "AAAAAAAAAAAAAAAAAAAAAQ"


def test_a_storage_id_is_22_characters_with_or_without_padding() -> None:
    assert uuid_to_text(ONE) == TEXT
    for text in (TEXT, TEXT + "=", TEXT + "=="):
        assert uuid_from_text(text) == ONE


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TEXT + "===", "is too long"),
        ("A" * 24, "it holds 18 bytes instead of 16"),
        ("A" * 25, "is too long"),
        ("A" * 20, "it holds 15 bytes instead of 16"),
        ("A" * 21, "is not a uuid"),
        ("A" * 21 + "!", "is not a uuid"),
    ],
)
def test_other_texts_are_no_storage_ids(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        uuid_from_text(text)


def test_a_key_without_storage_id_matches_any_under_its_id() -> None:
    by_id = ReplicaKey(3)
    assert by_id.matches(key(3))
    assert key(3).matches(by_id)
    assert key(3).matches(key(3))
    assert not key(3).matches(key(3, disk=1))
    assert not by_id.matches(ReplicaKey(4))


def test_keys_are_ordered_by_id_and_then_by_storage_id_an_unknown_one_first() -> None:
    zero = ReplicaKey(3, UUID(int=0))
    ordered = [key(2, disk=1), ReplicaKey(3), zero, key(3), key(3, disk=1)]
    shuffled = [ordered[at] for at in (3, 1, 4, 0, 2)]
    assert sorted(shuffled, key=lambda one: one.sort_key()) == ordered
    assert ReplicaKey(3).sort_key() < zero.sort_key()


def test_texts_of_values() -> None:
    assert str(ReplicaKey(3)) == "3"
    assert str(ReplicaKey(3, ONE)) == f"(3, {TEXT})"
    assert str(SnapshotId(10, 3)) == "10-3"
    assert SnapshotId(10, 3).end_offset == OffsetAndEpoch(10, 3).offset
    assert str(Address("::1", 9092)) == "[::1]:9092"
    assert str(Address("host", 9092)) == "host:9092"


def test_a_set_of_voters_has_each_key_once_and_may_have_an_id_twice() -> None:
    both = keyed_set(key(3, disk=1), key(3), key(2))
    assert both.keys == (key(2), key(3), key(3, disk=1))
    assert (both.ids, len(both)) == ((2, 3), 3)
    with pytest.raises(ValueError, match="twice"):
        keyed_set(key(3), key(3))


def test_a_set_is_one_by_id_as_soon_as_one_storage_id_is_not_known() -> None:
    assert not voter_set(1, 2).is_by_id
    assert VoterSet.of([Voter(key(1)), Voter(ReplicaKey(2))]).is_by_id


def test_a_voter_is_found_by_its_key_and_its_endpoints_by_its_id() -> None:
    voters = voter_set(1, 2)
    assert voters.find(key(2)) == Voter(key(2), endpoints(2))
    assert voters.find(key(2, disk=1)) is None
    assert voters.find(key(9)) is None
    assert voters.endpoints_of(2) == endpoints(2)
    assert voters.endpoints_of(9) == ()
