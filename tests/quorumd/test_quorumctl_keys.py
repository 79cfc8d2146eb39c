"""quorumctl put, get, delete and watch: what they print, what they exit with, how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from quorumd.wire.control_records import LeaderChange, encode_control_batch
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.fetch import FetchRequest
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.records import Record, build_batch
from quorumd.wire.schema import Message
from tests.quorumd.conftest import Done, QuorumThread
from tests.quorumd.running import on_a_terminal, started
from tests.quorumd.snapshots import snapshot_bytes
from tests.support.ports import free_port

Run = Callable[..., Done]


def pairs(quorum: QuorumThread) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in quorum.quorum.records()]


def set_keys(quorum: QuorumThread, *keys_and_values: tuple[bytes | None, bytes | None]) -> None:
    records = [Record(timestamp=5, key=key, value=value) for key, value in keys_and_values]
    quorum.call(lambda fake: fake.append(build_batch(records)))


# --- put and delete


def test_a_key_is_put_read_and_deleted(quorum: QuorumThread, quorumctl: Run) -> None:
    assert quorumctl("put", "color", "blue") == Done(0, "0\n", "")
    assert quorumctl("get", "color") == Done(0, "blue\n", "")
    assert quorumctl("put", "color", "red") == Done(0, "1\n", "")
    assert quorumctl("get", "color") == Done(0, "red\n", "")
    assert quorumctl("delete", "color", "shape") == Done(0, "3\n", "")
    assert quorumctl("get", "color") == Done(
        1, "", "not found: color (in all records below offset 4)\n"
    )
    assert pairs(quorum)[2:] == [(b"color", None), (b"shape", None)]


def test_what_was_put_is_reported_for_programs(quorum: QuorumThread, quorumctl: Run) -> None:
    put = json.loads(quorumctl("put", "a", "1", "-o", "json").out)
    assert (put["records"], put["first_offset"], put["last_offset"]) == (1, 0, 0)
    deleted = json.loads(quorumctl("delete", "a", "b", "-o", "json").out)
    assert (deleted["records"], deleted["first_offset"], deleted["last_offset"]) == (2, 1, 2)


def test_lines_with_tabs_are_put(quorum: QuorumThread, quorumctl: Run) -> None:
    done = quorumctl("put", "--file", "-", stdin=b"a\t1\nb\tx\ty\nc\t\n\xff\t\x00\r\nlast\tline")
    assert done == Done(0, "4\n", "")
    assert pairs(quorum) == [
        (b"a", b"1"),
        (b"b", b"x\ty"),
        (b"c", b""),
        (b"\xff", b"\x00\r"),
        (b"last", b"line"),
    ]


def test_what_get_prints_as_json_is_put_again_exactly(
    quorum: QuorumThread, quorumctl: Run, tmp_path: Path
) -> None:
    contents = [
        (b"a", b""),
        (b"key\twith tab\nand line feed", b'"\\'),
        (b"\xff\xfe", b"\x00\xff"),
        ("ä".encode(), "\u2028 \U0001f600".encode()),
    ]
    set_keys(quorum, *contents)
    printed = quorumctl("get", "--all", "-o", "json").out
    assert printed.count("\n") == len(contents)
    copy = tmp_path / "copy"
    copy.write_text(printed)
    assert quorumctl("put", "--file", copy, "--format", "json").out == "7\n"
    assert sorted(pairs(quorum)[4:], key=str) == sorted(contents, key=str)


def test_null_in_json_deletes(quorum: QuorumThread, quorumctl: Run) -> None:
    lines = b'{"key": "a", "value": "1"}\n{"key": "a", "value": null, "offset": 7}\n'
    assert quorumctl("put", "--file", "-", "--format", "json", stdin=lines).code == 0
    assert pairs(quorum) == [(b"a", b"1"), (b"a", None)]


@pytest.mark.parametrize(
    ("line_format", "line", "complaint"),
    [
        ("tab", b"no tab", "'no tab' has no tab between key and value"),
        ("tab", b"", "'' has no tab"),
        ("tab", b"\x1b[31m", "has no tab"),
        ("tab", b"\tvalue", "the key is empty"),
        ("json", b"", "is no JSON"),
        ("json", b"\xff", "is no JSON"),
        ("json", b"[" * 100_000, "is no JSON"),
        (
            "json",
            b'{"key": "a", "value": "b", "key": "c"}',
            "the name 'key' occurs twice in an object",
        ),
        ("json", b"[]", 'expected an object with "key" and "value"'),
        ("json", b'{"key": "a"}', 'expected an object with "key" and "value"'),
        ("json", b'{"key": "", "value": "x"}', "the key is empty"),
        ("json", b'{"key": null, "value": "x"}', "the key is empty"),
        ("json", b'{"key": "a", "value": 5}', "the value is 5: write it as a string"),
        ("json", b'{"key": {"base64": "*"}, "value": "x"}', "the key is no base64"),
        ("json", b'{"key": "a", "value": {"b": 1}}', 'the value is {"b": 1}: write it'),
        ("json", b'{"key": "a", "value": "\\ud800"}', "the value holds half a character"),
    ],
)
def test_a_line_that_is_wrong_is_named_and_those_before_it_are_put(
    quorum: QuorumThread, quorumctl: Run, line_format: str, line: bytes, complaint: str
) -> None:
    good = b'{"key": "k", "value": "v"}' if line_format == "json" else b"k\tv"
    lines = b"\n".join([good, good, line, good])
    done = quorumctl("put", "--file", "-", "--format", line_format, stdin=lines)
    assert done.code == 1
    assert done.out == ""
    assert complaint in done.err
    assert done.err.startswith("Error: line 3: ")
    assert "2 records acknowledged, the last one at offset 1" in done.err
    assert "\x1b" not in done.err
    assert len(pairs(quorum)) == 2


def test_empty_input_puts_nothing_and_says_so(quorum: QuorumThread, quorumctl: Run) -> None:
    done = quorumctl("put", "--file", "-")
    assert done == Done(0, "", "nothing to put: the input was empty\n")


def test_a_value_that_is_too_large_is_refused_with_the_limit(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    quorum.quorum.refuse_produce = [ErrorCode.MESSAGE_TOO_LARGE]
    done = quorumctl("put", "a", "x")
    assert (done.code, done.out) == (1, "")
    assert "log.max.batch.bytes" in done.err


def test_an_acknowledgement_that_is_lost_puts_nothing_twice(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    losses = [True, True]
    quorum.quorum.before_answer = lambda node, request, response: (
        None if isinstance(request, ProduceRequest) and losses and losses.pop() else response
    )
    assert quorumctl("put", "a", "1") == Done(0, "0\n", "")
    assert pairs(quorum) == [(b"a", b"1")]


# --- get


def test_several_keys_a_prefix_and_all_are_printed_in_three_forms(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    set_keys(quorum, (b"b/2", b"x\ty"), (b"a", b"\xff"), (None, b"no key"), (b"b/1", b""))
    assert quorumctl("get", "b/2", "a").out == "b/2\tx\\ty\na\t\\xff\n"
    assert quorumctl("get", "--prefix", "b/").out == "b/1\t\nb/2\tx\\ty\n"
    assert quorumctl("get", "--all").out == "a\t\\xff\nb/1\t\nb/2\tx\\ty\n"
    assert quorumctl("get", "b/2", "b/2").out == "x\\ty\n"
    assert quorumctl("get", "b/2", "-o", "raw").out == "x\ty\n"
    assert json.loads(quorumctl("get", "a", "-o", "json").out) == {
        "key": "a",
        "value": {"base64": "/w=="},
        "offset": 1,
        "timestamp": 5,
        "if_unchanged_since": 4,
    }


def test_what_is_not_found_is_said_beside_what_is(quorum: QuorumThread, quorumctl: Run) -> None:
    set_keys(quorum, (b"a", b"1"))
    done = quorumctl("get", "x\t", "a", "y")
    assert done.code == 1
    assert done.out == "a\t1\n"
    assert done.err == (
        "not found: x\\t (in all records below offset 1)\n"
        "not found: y (in all records below offset 1)\n"
    )
    assert "not found: any key that begins with q" in quorumctl("get", "--prefix", "q").err
    assert quorumctl("get", "").code == 1


def test_an_empty_map_has_no_key_at_all(quorum: QuorumThread, quorumctl: Run) -> None:
    done = quorumctl("get", "--all")
    assert (done.code, done.out) == (1, "")
    assert "not found: any key" in done.err


def test_a_snapshot_and_the_log_behind_it_are_one_map(quorum: QuorumThread, quorumctl: Run) -> None:
    set_keys(quorum, *[(b"z", b"z")] * 3)
    quorum.quorum.snapshots[3, 1] = snapshot_bytes({b"a": (b"1", 0), b"b": (b"2", 2)})
    quorum.quorum.log_start_offset = 3
    set_keys(quorum, (b"b", None), (b"c", b"3"))
    found = [json.loads(line) for line in quorumctl("get", "--all", "-o", "json").out.splitlines()]
    assert [(each["key"], each["offset"]) for each in found] == [("a", 0), ("c", 4)]


def test_the_offset_that_put_prints_is_waited_for(quorum: QuorumThread, quorumctl: Run) -> None:
    set_keys(quorum, (b"a", b"1"))
    with started("get", "a", "--min-offset", "1") as process:
        assert process.stdout is not None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        set_keys(quorum, (b"a", b"2"))
        assert process.stdout.read() == b"2\n"
        assert process.wait(20) == 0


def test_an_offset_that_never_comes_is_an_error(quorum: QuorumThread, quorumctl: Run) -> None:
    set_keys(quorum, (b"a", b"1"))
    done = quorumctl("get", "a", "--min-offset", "5", "--timeout", "0.4")
    assert (done.code, done.out) == (1, "")
    assert "offset 5 was not reached within 0.4 s: everything below 1 is here" in done.err


def test_while_records_come_an_offset_is_waited_for(quorum: QuorumThread) -> None:
    set_keys(quorum, (b"a", b"1"))
    with started("get", "a", "--min-offset", "8", "--timeout", "0.8") as process:
        for _ in range(8):
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
            set_keys(quorum, (b"a", b"2"))
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, b"2\n", b"")


@pytest.mark.parametrize("command", ["get", "watch"])
def test_a_quorum_that_is_lost_in_the_middle_of_reading_is_an_error_with_its_reason(
    quorum: QuorumThread, command: str
) -> None:
    set_keys(quorum, (b"a", b"1"), (b"b", b"2"))
    fetches = [0]

    def vanish(node: int, request: Message, response: Message) -> Message | None:
        if isinstance(request, FetchRequest):
            fetches[0] += 1
        return None if isinstance(request, FetchRequest) and fetches[0] > 1 else response

    quorum.quorum.before_answer = vanish
    with started(command, "a", "--timeout", "2") as process:
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, b"")
    assert re.search(rb"could not (read the log|load the snapshot) within 2 s", err)
    assert b"closed the connection" in err


def test_a_get_that_waits_is_ended_by_ctrl_c(quorum: QuorumThread) -> None:
    set_keys(quorum, (b"a", b"1"))
    reads = len(quorum.quorum.requests)
    with started("get", "a", "--min-offset", "99") as process:
        while not any(isinstance(each, FetchRequest) for _, each in quorum.quorum.requests[reads:]):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (130, b"", b"")


def test_a_linearizable_read_appends_what_its_help_says(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    set_keys(quorum, (b"a", b"1"))
    assert quorumctl("get", "a", "--linearizable").out == "1\n"
    *_, (_, timestamp, key, value, _) = quorum.quorum.records()
    assert (timestamp, key) == (-1, None), "so that no clock matters"
    assert value is not None
    assert f'value "{value.decode()}"' in quorumctl("get", "--help").out
    assert quorumctl("get", "--all").out == "a\t1\n"


def test_a_batch_that_nobody_can_read_is_named(quorum: QuorumThread, quorumctl: Run) -> None:
    from tests.quorumd.test_client import _with_codec

    set_keys(quorum, (b"a", b"1"))
    bad = _with_codec(build_batch([Record(key=b"a", value=b"2")]), 1)
    quorum.call(lambda fake: fake.append(bad))
    set_keys(quorum, (b"b", b"1"))
    done = quorumctl("get", "a")
    assert (done.code, done.out) == (0, "1\n")
    assert "offsets 1 to 1 can't be read by any client" in done.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("put",), "give a KEY and a VALUE, or --file"),
        (("put", "a"), "give a KEY and a VALUE, or --file"),
        (("put", "a", "b", "c"), "give a KEY and a VALUE, or --file"),
        (("put", "a", "b", "--file", "-"), "not both"),
        (("put", "", "b"), "the KEY is empty"),
        (("put", "--file", "/no/such/file"), "does not exist"),
        (("delete",), "Missing argument 'KEY...'"),
        (("get",), "give one of these"),
        (("get", "a", "--all"), "give one of these"),
        (("get", "--all", "--prefix", ""), "give one of these"),
        (("get", "a", "--min-offset", "-1"), "not in the range"),
        (("watch", "a", "--prefix", "b"), "not both"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    quorum: QuorumThread, quorumctl: Run, arguments: tuple[str, ...], complaint: str
) -> None:
    done = quorumctl(*arguments)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err
    assert pairs(quorum) == []


@pytest.mark.parametrize("command", [("put", "a", "b"), ("delete", "a"), ("get", "a"), ("watch",)])
def test_an_unreachable_quorum_is_reported_after_the_timeout(
    quorumctl: Run, command: tuple[str, ...]
) -> None:
    port = free_port()
    done = quorumctl(*command, "-b", f"127.0.0.1:{port}", "--timeout", "0.3")
    assert (done.code, done.out) == (1, "")
    assert f"127.0.0.1:{port}: connection refused: nothing listens there" in done.err


# --- watch


def test_what_is_there_comes_first_then_each_change_also_from_the_next_leader(
    quorum: QuorumThread,
) -> None:
    set_keys(quorum, (b"b", b"1"), (b"a", b"\n"))
    set_keys(quorum, (b"b", b"2"))
    with started("watch") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"1\ta\t\\n\n"
        assert process.stdout.readline() == b"2\tb\t2\n"
        set_keys(quorum, (b"b", None), (b"c", None))
        assert process.stdout.readline() == b"3\tb\t<null>\n"
        quorum.call(lambda fake: fake.nodes[1].stop())
        quorum.call(lambda fake: fake.elect(2))
        change = LeaderChange(version=0, leader_id=2, voters=(), granting_voters=())
        batch = encode_control_batch([change], base_offset=0, epoch=0, timestamp_ms=5)
        quorum.call(lambda fake: fake.append(batch))
        assert process.stderr.readline() == b"node 2 leads since epoch 2\n"
        set_keys(quorum, (b"a", b"3"))
        assert process.stdout.readline() == b"6\ta\t3\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (130, b"", b"")


def test_only_the_keys_that_are_named_are_watched(quorum: QuorumThread) -> None:
    set_keys(quorum, (b"a", b"1"), (b"b", b"1"))
    with started("watch", "b", "nothing", "--output", "json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["offset"] == 1
        assert process.stderr.readline() == b"nothing has no value\n"
        set_keys(quorum, (b"a", b"2"), (b"b", b"\xff"), (b"b", None))
        assert json.loads(process.stdout.readline()) == {
            "key": "b",
            "value": {"base64": "/w=="},
            "offset": 3,
            "timestamp": 5,
        }
        assert json.loads(process.stdout.readline())["value"] is None


def test_a_watch_waits_for_a_quorum_that_is_gone_and_says_so_once(quorum: QuorumThread) -> None:
    set_keys(quorum, (b"a", b"1"))
    with started("watch", "--prefix", "a", "--timeout", "2") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"0\ta\t1\n"
        for node in quorum.quorum.nodes.values():
            quorum.call(lambda _, node=node: node.stop())
        assert b"no leader can be reached" in process.stderr.readline()
        for node in quorum.quorum.nodes.values():
            quorum.call(lambda _, node=node: node.start())
        assert process.stderr.readline() == b"the quorum can be read again\n"
        set_keys(quorum, (b"a", b"2"))
        assert process.stdout.readline() == b"1\ta\t2\n"


def test_after_a_long_outage_the_differences_are_printed(quorum: QuorumThread) -> None:
    set_keys(quorum, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    with started("watch") as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        for node in quorum.quorum.nodes.values():
            quorum.call(lambda _, node=node: node.stop())
        set_keys(quorum, *[(b"z", b"z")] * 5)
        quorum.quorum.snapshots[8, 1] = snapshot_bytes({b"b": (b"2", 5), b"c": (b"1", 2)})
        quorum.quorum.log_start_offset = 8
        for node in quorum.quorum.nodes.values():
            quorum.call(lambda _, node=node: node.start())
        assert process.stdout.readline() == b"5\tb\t2\n"
        assert process.stdout.readline() == b"7\ta\t<null>\n"


def test_a_closed_pipe_ends_a_watch_quietly(quorum: QuorumThread) -> None:
    set_keys(quorum, (b"a", b"1"))
    with started("watch") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        set_keys(quorum, *[(b"a", b"x" * 100)] * 1000)
        assert process.wait(20) == 141
        assert process.stderr.read() == b""


# --- on a terminal


def test_a_long_materialisation_shows_a_bar(quorum: QuorumThread, tmp_path: Path) -> None:
    set_keys(quorum, (b"a", b"1"))
    contents = {b"%05d" % number: (b"v" * 50, 0) for number in range(2000)}
    quorum.quorum.snapshots[1, 1] = snapshot_bytes(contents, records_per_batch=100)
    quorum.quorum.log_start_offset = 1
    # Slow enough: a piece takes a round trip.
    quorum.quorum.piece_bytes = 20
    code, shown = on_a_terminal("get", "--prefix", "00000")
    assert code == 0
    assert "loading the snapshot" in shown
    assert re.search(r"\d+\.\d/\d+\.\d KiB", re.sub(r"\x1b\[[\d;]*m", "", shown))
    assert shown.rstrip().endswith("00000\t" + "v" * 50)


def test_a_leader_change_is_dim_on_a_terminal(quorum: QuorumThread) -> None:
    import pty

    set_keys(quorum, (b"a", b"1"))
    terminal, other_end = pty.openpty()
    with started("watch", stderr=other_end) as process:
        os.close(other_end)
        assert process.stdout is not None
        process.stdout.readline()
        quorum.call(lambda fake: fake.elect(3))
        change = LeaderChange(version=0, leader_id=3, voters=(), granting_voters=())
        batch = encode_control_batch([change], base_offset=0, epoch=0, timestamp_ms=5)
        quorum.call(lambda fake: fake.append(batch))
        assert os.read(terminal, 1000) == b"\x1b[2mnode 3 leads since epoch 2\x1b[0m\r\n"
    os.close(terminal)
