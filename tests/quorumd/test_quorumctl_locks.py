"""`quorumctl locks` and `unlock` on records as they are in a log: what is shown, whose lock is meant."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from quorumd.client.coordination.claim_record import ClaimRecord
from quorumd.client.coordination.keys import ClaimKind, Place
from quorumd.wire.messages.list_offsets import ListOffsetsRequest
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.records import Record, build_batch
from quorumd.wire.schema import Message
from tests.quorumd.conftest import Done, QuorumThread
from tests.quorumd.fake_quorum import FakeQuorum

Run = Callable[..., Done]
ONE, TWO = ("1" * 32, "2" * 32)


def put(quorum: FakeQuorum, place: Place, claim: str, *, written_ms: int, owner: str) -> None:
    since = "2026-01-01T00:00:00Z"
    record = ClaimRecord(owner, "h\t1", 7, "why", since, 90_000, claim, TWO)
    value = record.encoded()
    quorum.append(build_batch([Record(timestamp=written_ms, key=place.key, value=value)]))


def test_a_holder_has_a_token_and_a_time_and_who_waits_has_neither(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    name = Place(ClaimKind.LOCK, "jobs/a")
    now_ms = int(time.time() * 1000)

    def fill(fake: FakeQuorum) -> None:
        put(fake, name, ONE, written_ms=now_ms - 300_000, owner="ann")
        put(fake, name._replace(claim=TWO), TWO, written_ms=now_ms, owner="bob")
        put(fake, Place(ClaimKind.LOCK, "jobs/b"), ONE, written_ms=-1, owner="cy")
        put(fake, Place(ClaimKind.LOCK, "jobs/c"), ONE, written_ms=now_ms + 10**6, owner="dee")

    quorum.call(fill)
    rows = [line.split("  ") for line in quorumctl("locks").out.splitlines()[1:]]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    common = ["h\\t1", "7", "2026-01-01T00:00:00Z", "90 s"]
    assert cells == [
        ["jobs/a", "held", "0", "ann", *common, "300 s ago", "why"],
        ["jobs/a", "waits", "bob", *common, "why"],
        ["jobs/b", "held", "2", "cy", *common, "at a time that is not known", "why"],
        ["jobs/c", "held", "3", "dee", *common, "0.0 s ago", "why"],
    ]
    found = [json.loads(line) for line in quorumctl("locks", "-o", "json").out.splitlines()]
    assert [each["holder"]["token"] for each in found] == [0, 2, 3]
    assert "token" not in found[0]["waiters"][0]


def test_a_lock_whose_name_only_begins_so_is_not_taken_away(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    place = Place(ClaimKind.LOCK, "jobs/nightly")
    quorum.call(lambda fake: put(fake, place, ONE, written_ms=1, owner="ann"))
    done = quorumctl("unlock", "--force", "--yes", "jobs")
    assert done == Done(1, "", "nobody holds jobs: nothing done\n")
    assert quorumctl("unlock", "jobs/nightly").code == 1
    assert quorumctl("unlock", "--force", "jobs/nightly").code == 2
    assert len(quorum.quorum.log) == 1
    done = quorumctl("unlock", "--force", "--yes", "jobs/nightly")
    assert done == Done(0, "taken away: jobs/nightly, token 0\n", "")


def test_nor_is_one_that_has_changed_hands_since_it_was_shown(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    place = Place(ClaimKind.LOCK, "a")
    quorum.call(lambda fake: put(fake, place, ONE, written_ms=1, owner="ann"))
    asked = 0

    def before_answer(_: int, request: Message, answer: Message) -> Message:
        nonlocal asked
        if isinstance(request, ListOffsetsRequest):
            asked += 1
            if asked == 2:
                put(quorum.quorum, place, TWO, written_ms=1, owner="bob")
        return answer

    quorum.quorum.before_answer = before_answer
    done = quorumctl("unlock", "--force", "--yes", "a")
    assert done == Done(1, "", "a has changed hands meanwhile: nothing done\n")
    assert not any(isinstance(each, ProduceRequest) for _, each in quorum.quorum.requests)
