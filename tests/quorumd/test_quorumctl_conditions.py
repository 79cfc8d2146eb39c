"""quorumctl put, delete and txn with conditions: what is written, what they print and exit with."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumd.wire.messages.produce import ProduceRequest
from tests.quorumd.conftest import Done, QuorumThread
from tests.quorumd.fake_quorum import FakeQuorum
from tests.quorumd.running import started

Run = Callable[..., Done]
CONFLICT = 4


def pairs(quorum: QuorumThread) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in quorum.quorum.records()]


def test_what_get_says_is_what_put_needs(quorum: QuorumThread, quorumctl: Run) -> None:
    quorumctl("put", "color", "blue")
    quorumctl("put", "shape", "round")
    assert quorumctl("get", "color", "--with-offset") == Done(0, "2\tblue\n", "")
    assert quorumctl("get", "--all", "--with-offset").out == "2\tcolor\tblue\n2\tshape\tround\n"
    found = json.loads(quorumctl("get", "color", "-o", "json").out)
    assert (found["offset"], found["if_unchanged_since"]) == (0, 2)
    assert quorumctl("get", "color", "--with-offset", "-o", "raw").code == 2
    assert quorumctl("put", "color", "red", "--if-unchanged-since", 2) == Done(0, "2\n", "")
    assert quorumctl("put", "color", "green", "--if-unchanged-since", 2) == Done(
        CONFLICT,
        "",
        "conflict: color was written at offset 2, and was to be unchanged since 2\n",
    )
    assert quorumctl("get", "color").out == "red\n"


def test_delete_only_if_unchanged(quorum: QuorumThread, quorumctl: Run) -> None:
    quorumctl("put", "a", "1")
    assert quorumctl("delete", "a", "b", "--if-unchanged-since", 1) == Done(0, "2\n", "")
    done = quorumctl("delete", "x", "b", "--if-unchanged-since", 1, "-o", "json")
    assert (done.code, json.loads(done.out)) == (CONFLICT, {"conflict": {"key": "b", "offset": 2}})
    assert pairs(quorum) == [(b"a", b"1"), (b"a", None), (b"b", None)]


def test_put_only_if_absent(quorum: QuorumThread, quorumctl: Run) -> None:
    assert quorumctl("put", "--if-absent", "owner", "me") == Done(0, "0\n", "")
    assert quorumctl("put", "--if-absent", "owner", "you") == Done(
        CONFLICT, "", "conflict: owner was written at offset 0, and was to be absent\n"
    )
    quorumctl("delete", "owner")
    assert quorumctl("put", "--if-absent", "owner", "you") == Done(0, "2\n", "")
    assert pairs(quorum) == [(b"owner", b"me"), (b"owner", None), (b"owner", b"you")]


def test_a_file_is_put_at_once_if_there_is_a_condition(
    quorum: QuorumThread, quorumctl: Run, tmp_path: Path
) -> None:
    file = tmp_path / "pairs"
    file.write_bytes(b"a\t1\nb\t2")
    done = quorumctl("put", "--file", file, "--if-unchanged-since", 0, "-o", "json")
    assert {**json.loads(done.out), "seconds": 0} == {
        "records": 2,
        "first_offset": 0,
        "last_offset": 1,
        "seconds": 0,
    }
    assert len(quorum.quorum.log) == 1
    assert quorumctl("put", "--file", file, "--if-absent").code == CONFLICT
    file.write_bytes(b"c\t1\nno tab")
    done = quorumctl("put", "--file", file, "--if-absent")
    assert done.has_one_error
    assert "line 2" in done.err
    file.write_bytes(b"")
    assert quorumctl("put", "--file", file, "--if-absent").has_one_error
    assert len(quorum.quorum.log) == 1


def test_conditions_that_exclude_each_other(quorum: QuorumThread, quorumctl: Run) -> None:
    assert quorumctl("put", "a", "1", "--if-absent", "--if-unchanged-since", 1).code == 2
    assert quorumctl("put", "a", "1", "--if-unchanged-since", -1).code == 2
    assert quorumctl("delete", "a", "--if-unchanged-since", "x").code == 2
    assert pairs(quorum) == []


def test_an_offset_above_the_log_is_refused(quorum: QuorumThread, quorumctl: Run) -> None:
    done = quorumctl("put", "a", "1", "--if-unchanged-since", 7)
    assert done.has_one_error
    assert "no offset above 0 is known yet" in done.err


def test_a_transaction_is_all_or_nothing(quorum: QuorumThread, quorumctl: Run) -> None:
    quorumctl("put", "version", "1")
    changes = {
        "if_unchanged_since": 1,
        "unchanged": ["version"],
        "changes": [
            {"key": "a", "value": "1"},
            {"key": {"base64": "/w=="}, "value": None},
        ],
    }
    text = json.dumps(changes).encode()
    assert quorumctl("txn", "--file", "-", stdin=text) == Done(0, "2\n", "")
    assert pairs(quorum)[1:] == [(b"a", b"1"), (b"\xff", None)]
    assert len(quorum.quorum.log) == 2
    done = quorumctl("txn", "--file", "-", stdin=text)
    assert (done.code, done.out) == (CONFLICT, "")
    assert "was written at offset 1, and was to be unchanged since 1" in done.err
    quorumctl("put", "version", "2")
    done = quorumctl("txn", "--file", "-", "--if-unchanged-since", 3, "-o", "json", stdin=text)
    assert json.loads(done.out) == {"conflict": {"key": "version", "offset": 3}}
    assert quorumctl("txn", "--file", "-", "--if-unchanged-since", 4, stdin=text).out == "5\n"


def test_a_transaction_without_a_condition_is_one_batch(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    changes = [{"key": f"k{i}", "value": "v" * 200_000} for i in range(4)]
    text = json.dumps({"changes": changes}).encode()
    assert quorumctl("txn", "--file", "-", stdin=text) == Done(0, "3\n", "")
    assert len(quorum.quorum.log) == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is no JSON"),
        (
            '{"changes": [{"key": "a", "value": "b"}], "changes": [{"key": "c", "value": "d"}]}',
            "the name 'changes' occurs twice in an object",
        ),
        pytest.param("[" * 100_000, "is no JSON", id="too deep"),
        ("[]", "an object with these members: if_unchanged_since, unchanged, changes"),
        ('{"changes": [{"key": "a", "value": "b"}], "since": 1}', "expected an object"),
        ('{"changes": []}', "must be a list with a change"),
        ('{"changes": {"a": "b"}}', "must be a list with a change"),
        ('{"changes": [{"key": "a", "value": "b"}, {"key": "a"}]}', "change 2: expected"),
        ('{"changes": [{"key": "a", "value": 5}]}', "change 1: the value is 5"),
        ('{"changes": [{"key": "", "value": "b"}]}', "change 1: the key is empty"),
        ('{"changes": [{"key": "a", "value": "b"}], "unchanged": ["a"]}', "needs an offset"),
        (
            '{"changes": [{"key": "a", "value": "b"}], "unchanged": [""], "if_unchanged_since": 1}',
            "unchanged key 1: the key is empty",
        ),
        ('{"changes": [{"key": "a", "value": "b"}], "unchanged": "a"}', "a list of keys"),
        ('{"changes": [{"key": "a", "value": "b"}], "if_unchanged_since": -1}', "from 0 on"),
        ('{"changes": [{"key": "a", "value": "b"}], "if_unchanged_since": true}', "from 0 on"),
    ],
)
def test_a_wrong_file_changes_nothing(
    quorum: QuorumThread, quorumctl: Run, text: str, complaint: str
) -> None:
    done = quorumctl("txn", "--file", "-", stdin=text.encode())
    assert done.has_one_error
    assert complaint in done.err
    assert pairs(quorum) == []


@pytest.mark.parametrize(
    "arguments", [("txn", "--file"), ("put", "--if-absent", "--file")], ids=["txn", "put"]
)
def test_a_file_that_no_batch_can_hold_is_not_read_to_its_end(
    quorum: QuorumThread, quorumctl: Run, arguments: tuple[str, ...]
) -> None:
    # It has none.
    done = quorumctl(*arguments, "/dev/zero")
    assert done.has_one_error
    assert "/dev/zero is larger than 64 MiB, and all of it would be one batch" in done.err
    assert pairs(quorum) == []


def test_of_several_keys_each_has_to_be_absent(
    quorum: QuorumThread, quorumctl: Run, tmp_path: Path
) -> None:
    quorumctl("put", "b", "1")
    file = tmp_path / "pairs"
    file.write_bytes(b"a\t1\nb\t2\n")
    done = quorumctl("put", "--if-absent", "--file", file)
    assert (done.code, done.err) == (
        CONFLICT,
        "conflict: b was written at offset 0, and was to be absent\n",
    )
    assert pairs(quorum) == [(b"b", b"1")]


def test_values_of_a_file_are_put_as_they_are_under_a_condition_too(
    quorum: QuorumThread, quorumctl: Run, tmp_path: Path
) -> None:
    file = tmp_path / "pairs"
    file.write_bytes(b" a\t 1 \r\nb\t\n")
    assert quorumctl("put", "--if-absent", "--file", file).code == 0
    assert pairs(quorum) == [(b" a", b" 1 \r"), (b"b", b"")]


def test_offset_0_is_a_condition(quorum: QuorumThread, quorumctl: Run, tmp_path: Path) -> None:
    quorumctl("put", "a", "1")
    assert quorumctl("delete", "a", "--if-unchanged-since", 0).code == CONFLICT
    assert quorumctl("put", "a", "2", "--if-unchanged-since", 0).code == CONFLICT
    file = tmp_path / "changes"
    changes = [{"key": "a", "value": "2"}]
    file.write_text(json.dumps({"if_unchanged_since": 1, "changes": changes}))
    assert quorumctl("txn", "--file", file, "--if-unchanged-since", 0).code == CONFLICT
    assert quorumctl("txn", "--file", file).code == 0


@pytest.mark.parametrize(
    "arguments",
    [("put", "a", "1", "--if-unchanged-since", "0"), ("put", "a", "1", "--if-absent")],
)
def test_a_change_that_is_interrupted_before_its_answer_may_be_in_the_log(
    quorum: QuorumThread, arguments: tuple[str, ...]
) -> None:
    quorum.quorum.before_answer = lambda _, request, answer: (
        None if isinstance(request, ProduceRequest) else answer
    )
    with started(*arguments) as process:
        assert process.stderr is not None
        quorum.call(_until_appended)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read() == (
            b"interrupted: the change may be in the log: read again before you decide\n"
        )
    assert pairs(quorum) == [(b"a", b"1")]


async def _until_appended(fake: FakeQuorum) -> None:
    while not fake.end_offset:
        await fake.appended.wait()
