"""The records of claims: what counts as one, and what stands for whatever does not."""

from __future__ import annotations

import calendar
import getpass
import json
import time
from typing import Any

import pytest

from quorumd import Lock, QuorumClient
from quorumd.client.coordination.claim_record import (
    UNREADABLE,
    ClaimRecord,
    claim_record_of,
    this_process,
)
from quorumd.client.coordination.keys import TTL_S_MAX, TTL_S_MIN

CLAIM, CLIENT = "1" * 32, "a" * 32
RECORD = ClaimRecord("ann", "host", 7, "report", "2026-01-01T00:00:00Z", 10_000, CLAIM, CLIENT)


def changed(**members: Any) -> bytes:
    return json.dumps(RECORD._asdict() | members).encode()


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        RECORD._replace(attempt=3, token=0, queued=0, value="10.0.0.1:80"),
        RECORD._replace(owner="", comment="ü", ttl_ms=int(TTL_S_MIN * 1000)),
        RECORD._replace(ttl_ms=int(TTL_S_MAX * 1000), attempt=(1 << 63) - 1),
    ],
)
def test_a_record_is_read_as_it_was_written(record: ClaimRecord) -> None:
    assert claim_record_of(record.encoded()) == record


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"x",
        b"7",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b"{}",
        changed(owner=None),
        changed(host=7),
        changed(comment=["x"]),
        changed(since=1.5),
        changed(value=None),
        changed(pid=-1),
        changed(pid="7"),
        changed(attempt=True),
        changed(attempt=1 << 63),
        changed(token=-1),
        changed(token="0"),
        changed(queued=1.0),
        changed(queued=1 << 63),
        changed(ttl_ms=int(TTL_S_MIN * 1000) - 1),
        changed(ttl_ms=int(TTL_S_MAX * 1000) + 1),
        changed(claim=CLAIM + "1"),
        changed(claim=CLAIM[:-1] + "G"),
        changed(client=CLIENT.upper()),
        changed(client=""),
    ],
)
def test_anything_else_is_unreadable_and_lapses_after_a_minute(value: bytes) -> None:
    assert claim_record_of(value) is UNREADABLE
    assert UNREADABLE.ttl_s == 60


def test_half_of_a_character_is_replaced_and_fails_nobody() -> None:
    """As it is in an argument or a variable that is no UTF-8."""
    record = claim_record_of(RECORD._replace(comment="\udcff").encoded())
    assert record == RECORD._replace(comment="?")


def test_it_says_whose_it_is_and_since_when_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        before = time.time()
        record = this_process(owner=None, comment="", ttl_ms=1000, claim=CLAIM, client=CLIENT)
    finally:
        monkeypatch.undo()
        time.tzset()
    since = calendar.timegm(time.strptime(record.since, "%Y-%m-%dT%H:%M:%SZ"))
    assert 0 <= since - int(before) < 60
    assert record.owner == getpass.getuser()


def test_an_owner_that_is_given_is_taken_also_an_empty_one() -> None:
    record = this_process(owner="", comment="", ttl_ms=1000, claim=CLAIM, client=CLIENT)
    assert record.owner == ""


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_without_a_name_is_a_number(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nameless() -> str:
        raise error

    monkeypatch.setattr("getpass.getuser", nameless)
    record = this_process(owner=None, comment="", ttl_ms=1000, claim=CLAIM, client=CLIENT)
    assert record.owner.isdecimal()


@pytest.mark.parametrize("given", [{"name": None}, {"name": b"x"}, {"value": b"x"}, {"owner": 5}])
def test_what_is_no_text_is_refused_by_its_type(given: dict[str, Any]) -> None:
    client = QuorumClient("127.0.0.1:1")
    with pytest.raises(TypeError, match=r"the \w+ of a claim is of type \w+: give text"):
        Lock(client, **{"name": "x", **given})
