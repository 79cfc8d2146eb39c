"""quorumctl's network commands: what they print, what they exit with, how they end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from quorumd.cli.bench import percentile, success_prefix
from quorumd.cli.main import cli
from quorumd.client.client import EARLIEST
from quorumd.wire.codec import encode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.headers import encode_response_header
from quorumd.wire.messages.fetch import FetchRequest
from quorumd.wire.messages.list_offsets import ListOffsetsRequest
from quorumd.wire.messages.metadata import MetadataRequest
from quorumd.wire.messages.produce import (
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from quorumd.wire.records import Record, build_batch
from quorumd.wire.schema import Message
from tests.quorumd.conftest import Done, QuorumThread
from tests.quorumd.fake_quorum import FakeQuorum
from tests.quorumd.running import COMMAND, on_a_terminal, started
from tests.quorumd.test_client import _with_codec
from tests.support.ports import free_port

Run = Callable[..., Done]


def values(quorum: QuorumThread) -> list[bytes | None]:
    return [record.value for record in quorum.quorum.records()]


# --- describe


def test_status_has_the_rows_of_the_protocol_and_the_replica_keys(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    quorum.call(lambda fake: fake.elect(2))
    quorum.call(lambda fake: fake.append(build_batch([Record(value=b"x")] * 50)))
    done = quorumctl("describe", "--status")
    assert done.code == 0
    labels = [line[:24].strip() for line in done.out.splitlines()]
    assert [label for label in labels if label] == [
        "ClusterId:",
        "LeaderId:",
        "LeaderEpoch:",
        "HighWatermark:",
        "MaxFollowerLag:",
        "MaxFollowerLagTimeMs:",
        "CurrentVoters:",
        "CouldBeVoters:",
    ]
    ports = [node.port for node in quorum.quorum.nodes.values()]
    assert f"1  AAAAAAAAAAEAAAAAAAAAAQ  PLAINTEXT://127.0.0.1:{ports[0]}" in done.out
    assert "CouldBeVoters:          9  AAAAAAAAAAEAAAAAAAAACQ" in done.out
    assert re.search(r"^MaxFollowerLag: +3$", done.out, re.MULTILINE)
    assert quorumctl("describe").out.splitlines()[0] == done.out.splitlines()[0]


def test_replication_has_one_line_for_each_replica_the_leader_first(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    quorum.call(lambda fake: fake.elect(2))
    quorum.call(lambda fake: fake.append(build_batch([Record(value=b"x")] * 50)))
    done = quorumctl("describe", "--replication")
    lines = [line.split() for line in done.out.splitlines()]
    assert lines == [
        ["ReplicaId", "ReplicaUuid", "LogEndOffset", "Lag", "LagTimeMs", "Status"],
        ["2", "AAAAAAAAAAEAAAAAAAAAAg", "50", "0", "0", "Leader"],
        ["1", "AAAAAAAAAAEAAAAAAAAAAQ", "49", "1", "10", "Follower"],
        ["3", "AAAAAAAAAAEAAAAAAAAAAw", "47", "3", "30", "Follower"],
        ["9", "AAAAAAAAAAEAAAAAAAAACQ", "41", "9", "90", "Observer"],
    ]


def test_a_description_for_programs_holds_everything(quorum: QuorumThread, quorumctl: Run) -> None:
    described = json.loads(quorumctl("describe", "--output", "json").out)
    assert described["cluster_id"] == "fake-cluster"
    assert described["leader_id"] == 1
    assert [voter["status"] for voter in described["voters"]] == ["Leader", "Follower", "Follower"]
    assert described["could_be_voters"] == [
        {"replica_id": 9, "replica_uuid": "AAAAAAAAAAEAAAAAAAAACQ"}
    ]


# --- append and tail


def test_arguments_are_appended_and_printed_again(quorum: QuorumThread, quorumctl: Run) -> None:
    done = quorumctl("append", "--key", "k", "--header", "a=b=c", "one", "two")
    assert done == Done(0, "appended 2 records, last offset 1\n", "")
    assert quorumctl("tail").out == "0\tk\tone\n1\tk\ttwo\n"
    assert quorumctl("tail", "--headers", "-n", "1").out == "1\tk\ttwo\ta=b=c\n"


def test_names_and_values_of_headers_are_bytes(quorum: QuorumThread, quorumctl: Run) -> None:
    done = quorumctl("append", "--header", "\udcfe=\udcff", "--header", "ü=ß", "x")
    assert done == Done(0, "appended 1 record, last offset 0\n", "")
    (record,) = quorum.quorum.records()
    assert record.headers == ((b"\xfe", b"\xff"), ("ü", "ß".encode()))


def test_each_line_of_standard_input_is_a_record(quorum: QuorumThread, quorumctl: Run) -> None:
    done = quorumctl("append", "--output", "json", stdin=b"one\n\n\xff\x00\r\nlast")
    result = json.loads(done.out)
    assert (result["records"], result["first_offset"], result["last_offset"]) == (4, 0, 3)
    assert values(quorum) == [b"one", b"", b"\xff\x00\r", b"last"]


def test_lines_split_into_key_and_value(quorum: QuorumThread, quorumctl: Run) -> None:
    done = quorumctl(
        *("append", "--key-separator", "=", "--null-value", "-"), stdin=b"a=1\nb=x=y\nc=-\n"
    )
    assert done.code == 0
    assert quorumctl("tail").out == "0\ta\t1\n1\tb\tx=y\n2\tc\t<null>\n"


def test_a_line_without_separator_is_refused_and_the_ones_before_are_appended(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    done = quorumctl("append", "--key-separator", "=", stdin=b"a=1\nb=2\nnothing\nc=3\n")
    assert done.code == 1
    assert "'nothing' does not contain the separator '='" in done.err
    assert "2 records acknowledged, the last one at offset 1" in done.err
    assert values(quorum) == [b"1", b"2"]


def test_a_large_file_is_streamed_in_order(
    quorum: QuorumThread, quorumctl: Run, tmp_path: Path
) -> None:
    lines = [b"%d-" % number + b"x" * (number % 300) for number in range(20_000)]
    source = tmp_path / "lines"
    source.write_bytes(b"\n".join(lines))
    done = quorumctl("append", "--file", source, "--compression", "zstd")
    assert done.code == 0
    assert done.out.startswith("appended 20,000 records, last offset 19999, ")
    assert values(quorum) == lines


def test_empty_input_appends_nothing_and_says_so(quorum: QuorumThread, quorumctl: Run) -> None:
    assert quorumctl("append") == Done(0, "nothing to append: the input was empty\n", "")


def test_a_line_longer_than_any_record_is_refused(quorum: QuorumThread, quorumctl: Run) -> None:
    done = quorumctl("append", stdin=b"short\n" + b"x" * (9 << 20))
    assert done.code == 1
    assert "line 2 is longer than 8 MiB" in done.err
    assert "1 record acknowledged, the last one at offset 0" in done.err
    assert values(quorum) == [b"short"]


def test_a_refused_append_says_why_and_what_to_do(quorum: QuorumThread, quorumctl: Run) -> None:
    quorum.quorum.refuse_produce = [ErrorCode.MESSAGE_TOO_LARGE]
    done = quorumctl("append", "x")
    assert done.code == 1
    assert done.out == ""
    assert "log.max.batch.bytes" in done.err
    assert "Nothing was acknowledged." in done.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("append", "x", "--file", __file__), "give either values or --file"),
        (("append", "--key", "a", "--key-separator", "b", "x"), "exclude each other"),
        (("append", "--key-separator", "", "x"), "must not be empty"),
        (("append", "--header", "novalue", "x"), "expected NAME=VALUE"),
        (("append", "--file", "/no/such/file"), "does not exist"),
        (("tail", "--from-offset", "1", "--from-beginning"), "exclude each other"),
        (("tail", "--lines", "10", "--from-beginning"), "give --max-records"),
        (("tail", "-n", "0", "--from-offset", "0"), "give --max-records"),
        (("tail", "--from-offset", "x"), "'x' is not a valid integer."),
        (("tail", "--lines", "x"), "'x' is not a valid integer."),
        (("replace-voter", "x"), "'x' is not a valid integer."),
        (("tail", "--timeout", "x"), "'x' is not a valid number."),
        (("tail", "--from-offset", str(2**63)), "not in the range"),
        (("get", "a", "--min-offset", str(2**63)), "not in the range"),
        (("put", "a", "b", "--if-unchanged-since", str(2**63)), "not in the range"),
        (("txn", "--file", __file__, "--if-unchanged-since", str(2**63)), "not in the range"),
        (("describe", "-b", "nowhere"), "'nowhere' has no port"),
        (("describe", "--timeout", "0"), "not in the range"),
        (("bench", "--warmup", "inf"), "not in the range"),
        (("bench", "--record-bytes", "100000", "--batch-records", "90"), "lower one of them"),
        (("describe", "--timeout", "nan"), "not a number"),
        (("get", "a", "--timeout", "inf"), "not in the range"),
        (("watch", "--timeout", "2147484"), "not in the range"),
        (("add-voter", "--replica-id", "1", "--timeout", "1e308"), "not in the range"),
        (("reassign", "--timeout", "nan"), "not a number"),
        (("snapshot", "--timeout", "inf"), "not in the range"),
        (("bench", "--seconds", "nan"), "not a number"),
        (("dump-log",), "Missing argument 'PATH...'"),
        (("nonsense",), "No such command 'nonsense'"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    quorum: QuorumThread, quorumctl: Run, arguments: tuple[str, ...], complaint: str
) -> None:
    done = quorumctl(*arguments)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err


def test_without_addresses_the_option_and_the_variable_are_named(
    quorumctl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUORUM_BOOTSTRAP_SERVERS", raising=False)
    done = quorumctl("describe")
    assert done.code == 2
    assert "--bootstrap-server" in done.err
    assert "QUORUM_BOOTSTRAP_SERVERS" in done.err


def test_the_last_records_are_found_behind_control_records(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    quorumctl("append", "a", "b", "c")
    for _ in range(30):
        quorum.call(
            lambda fake: fake.append(
                build_batch([Record(key=b"\0\0\0\2", value=b"x")], is_control=True)
            )
        )
    quorumctl("append", "d")
    assert quorumctl("tail", "-n", "2").out == "2\t<null>\tc\n33\t<null>\td\n"
    assert quorumctl("tail", "-n", "3", "-o", "raw").out == "b\nc\nd\n"
    assert quorumctl("tail", "-n", "0").out == ""
    assert quorumctl("tail", "-n", "99").out.count("\n") == 4


def test_many_control_records_are_not_gone_back_over_one_by_one(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    quorumctl("append", "a")
    control = build_batch([Record(key=b"\0\0\0\2", value=b"x")], is_control=True)
    for _ in range(100):
        quorum.call(lambda fake: fake.append(control))
    fetches = 0

    def count(_: int, request: Message, response: Message) -> Message:
        nonlocal fetches
        fetches += isinstance(request, FetchRequest)
        return response

    quorum.quorum.before_answer = count
    assert quorumctl("tail", "-n", "1", "-o", "raw").out == "a\n"
    assert fetches <= 12


def test_records_that_come_meanwhile_are_not_among_the_last(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    quorumctl("append", *"abc")

    def come(node_id: int, request: Message, response: Message) -> Message:
        if (
            isinstance(request, ListOffsetsRequest)
            and request.topics[0].partitions[0].timestamp == EARLIEST
        ):
            quorum.quorum.append(build_batch([Record(value=b"d")]))
        return response

    quorum.quorum.before_answer = come
    assert quorumctl("tail", "-n", "2", "-o", "raw").out == "b\nc\n"


def test_a_range_is_printed_by_offset_and_count(quorum: QuorumThread, quorumctl: Run) -> None:
    quorumctl("append", *"abcdef")
    assert quorumctl("tail", "--from-offset", 2, "--max-records", 3, "-o", "raw").out == "c\nd\ne\n"
    assert quorumctl("tail", "--from-beginning", "-o", "raw").out == "a\nb\nc\nd\ne\nf\n"
    done = quorumctl("tail", "--from-offset", 99)
    assert done.code == 0
    assert done.out == ""


def test_a_batch_that_nobody_can_read_is_named_between_those_that_can_be(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    def fill(fake: FakeQuorum) -> None:
        for value in (b"a", b"b", b"c"):
            batch = build_batch([Record(value=value)] * 2)
            fake.append(_with_codec(batch, 1) if value == b"b" else batch)

    quorum.call(fill)
    done = quorumctl("tail", "-o", "raw")
    assert (done.code, done.out) == (0, "a\na\nc\nc\n")
    assert done.err.startswith("offsets 2 to 3 can't be read by any client: ")
    assert quorumctl("tail", "-n", 0) == Done(0, "", "")


def test_the_end_of_an_outage_is_said_once(quorum: QuorumThread, quorumctl: Run) -> None:
    fake, asked = quorum.quorum, 0

    def before_answer(_: int, request: Message, answer: Message) -> Message:
        nonlocal asked
        if isinstance(request, MetadataRequest) and not fake.leader_id:
            asked += 1
            if asked == 20:
                fake.elect(2)
        elif isinstance(request, FetchRequest) and fake.leader_id:
            if fake.leader_id == 1 and fake.end_offset == 2:
                fake.elect(0)
            else:
                fake.append(build_batch([Record(value=b"x")]))
        return answer

    fake.before_answer = before_answer
    done = quorumctl("tail", "--follow", "--max-records", 5, "--timeout", 0.2)
    assert done.out.count("x") == 5
    assert [line[:30] for line in done.err.splitlines()] == [
        "no leader can be reached (127.",
        "the quorum can be read again",
    ]


def test_an_offset_that_is_gone_is_refused(quorum: QuorumThread, quorumctl: Run) -> None:
    quorumctl("append", *"abc")
    quorum.quorum.log_start_offset = 2
    done = quorumctl("tail", "--from-offset", 1)
    assert done.code == 1
    assert "the log holds offsets 2 to 3 (exclusive)" in done.err


def test_nothing_from_the_log_controls_the_terminal(quorum: QuorumThread, quorumctl: Run) -> None:
    quorumctl("append", stdin=b"\x1b[31mred\t\\\xff\xc3\xa4\n")
    assert quorumctl("tail").out == "0\t<null>\t\\x1b[31mred\\t\\\\\\xffä\n"


def test_records_for_programs_are_exact(quorum: QuorumThread, quorumctl: Run) -> None:
    batch = build_batch(
        [Record(timestamp=5, key=b"\xff", value=b'"\n', headers=(("h", None), (b"\xfe", b"v")))]
    )
    quorum.call(lambda fake: fake.append(batch))
    assert json.loads(quorumctl("tail", "-o", "json").out) == {
        "offset": 0,
        "epoch": 1,
        "timestamp": 5,
        "key": {"base64": "/w=="},
        "value": '"\n',
        "headers": [["h", None], [{"base64": "/g=="}, "v"]],
    }


# --- bench


@pytest.mark.long
def test_a_benchmark_reports_rate_and_latency(quorum: QuorumThread, quorumctl: Run) -> None:
    options = ("--seconds", "1", "--warmup", "0", "--clients", "3", "--batch-records", "7")
    figures = json.loads(quorumctl("bench", *options, "-o", "json", "--in-flight", "2").out)
    assert figures["records"] % 7 == 0
    assert figures["records"] > 0
    assert figures["failures"] == 0
    latency = figures["latency_ms"]
    assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["max"]
    assert len(values(quorum)) >= figures["records"]
    done = quorumctl("bench", *options)
    assert re.match(r"[\d,]+ records in \d+\.\d s: [\d,]+ records/s, ", done.out)


@pytest.mark.long
def test_a_benchmark_goes_on_at_the_next_leader(quorum: QuorumThread, quorumctl: Run) -> None:
    quorum.quorum.refuse_produce = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    options = ("--seconds", "1", "--warmup", "0", "--clients", "1")
    figures = json.loads(quorumctl("bench", *options, "-o", "json").out)
    assert figures["failures"] == 2
    assert figures["records"] > 0


def test_a_benchmark_ends_when_the_quorum_refuses(quorum: QuorumThread, quorumctl: Run) -> None:
    quorum.quorum.refuse_produce = [ErrorCode.MESSAGE_TOO_LARGE] * 100
    done = quorumctl("bench", "--seconds", "5")
    assert done.code == 1
    assert "MESSAGE_TOO_LARGE" in done.err


def test_percentiles_are_values_that_were_measured() -> None:
    hundred = [float(number) for number in range(1, 101)]
    found = [percentile(hundred, percent) for percent in (0, 50, 95, 99, 99.9, 100)]
    assert found == [1, 50, 95, 99, 100, 100]
    assert percentile([7.0], 50) == 7.0


@pytest.mark.parametrize("version", range(3, 14))
def test_a_success_is_recognised_by_its_first_bytes(version: int) -> None:
    def frame(error: ErrorCode) -> bytes:
        partition = ProduceResponsePartition(error_code=error, base_offset=123)
        topic = ProduceResponseTopic(
            name="__cluster_metadata", topic_id=UUID(int=1), partition_responses=(partition,)
        )
        header = encode_response_header(0, version, 77)
        return header + encode(ProduceResponse(responses=(topic,)), version)

    prefix = success_prefix(version)
    assert frame(ErrorCode.NONE)[4 : 4 + len(prefix)] == prefix
    assert frame(ErrorCode.NOT_LEADER_OR_FOLLOWER)[4 : 4 + len(prefix)] != prefix


# --- how commands end


@pytest.mark.parametrize("command", ["describe", "snapshot"])
def test_an_unreachable_quorum_is_reported_after_the_timeout(quorumctl: Run, command: str) -> None:
    port = free_port()
    done = quorumctl(command, "-b", f"127.0.0.1:{port}", "--timeout", "0.3")
    assert done.code == 1
    assert "could not describe the quorum within 0.3 s" in done.err
    assert f"127.0.0.1:{port}: connection refused: nothing listens there" in done.err


def test_following_survives_a_leader_change_and_ends_quietly_by_ctrl_c(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    quorumctl("append", "one")
    with started("tail", "--follow") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\t<null>\tone\n"
        quorum.call(lambda fake: fake.nodes[1].stop())
        quorum.call(lambda fake: fake.elect(2))
        quorum.call(lambda fake: fake.append(build_batch([Record(value=b"two")])))
        assert process.stdout.readline() == b"1\t<null>\ttwo\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (130, b"", b"")


def test_following_waits_for_a_quorum_that_is_gone_and_says_so_once(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    quorumctl("append", "one")
    with started("tail", "--follow", "--timeout", "2") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"0\t<null>\tone\n"
        for node in quorum.quorum.nodes.values():
            quorum.call(lambda _, node=node: node.stop())
        assert b"no leader can be reached" in process.stderr.readline()
        for node in quorum.quorum.nodes.values():
            quorum.call(lambda _, node=node: node.start())
        assert process.stderr.readline() == b"the quorum can be read again\n"
        quorum.call(lambda fake: fake.append(build_batch([Record(value=b"two")])))
        assert process.stdout.readline() == b"1\t<null>\ttwo\n"


def test_an_interrupted_append_says_what_is_certain(quorum: QuorumThread) -> None:
    with started("append") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        for count, lines in ((2, b"one\ntwo\n"), (3, b"three\n")):
            process.stdin.write(lines)
            process.stdin.flush()
            quorum.call(partial(_until_appended, count=count))
        # The third was sent because the first two had been acknowledged; its own answer may be lost.
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert re.fullmatch(
            rb"interrupted: (2 records acknowledged, the last one at offset 1"
            rb"(; 1 record more may be in the log)?|3 records .*, the last one at offset 2)\n",
            process.stderr.read(),
        )


async def _until_appended(fake: FakeQuorum, count: int) -> None:
    while fake.end_offset < count:
        await fake.appended.wait()


def test_on_a_terminal_the_replicas_are_a_table_in_colour(quorum: QuorumThread) -> None:
    code, shown = on_a_terminal("describe", "--replication")
    assert code == 0
    assert "\x1b[32m" in shown
    plain = re.sub(r"\x1b\[\d*m", "", shown)
    assert re.search(r"^1 +AAAAAAAAAAEAAAAAAAAAAQ +0 +0 +0 +Leader", plain, re.MULTILINE)


def test_on_a_terminal_a_benchmark_shows_its_progress(quorum: QuorumThread) -> None:
    code, shown = on_a_terminal("bench", "--seconds", "0.6", "--warmup", "0")
    assert code == 0
    assert re.search(r"[\d,]+ records/s, 0 failed", shown)
    assert "latency: p50" in shown


def test_a_closed_pipe_ends_a_command_quietly(quorum: QuorumThread, quorumctl: Run) -> None:
    quorumctl("append", stdin=b"x" * 99 + b"\n" * 20_000)
    with started("tail", "--from-beginning") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.parametrize("command", [None, *sorted(cli.commands)])
def test_every_help_has_examples_and_fits_a_terminal(quorumctl: Run, command: str | None) -> None:
    done = quorumctl(*([command] if command else []), "--help")
    assert done.code == 0
    assert re.search(r"^ +quorumctl ", done.out, re.MULTILINE)
    assert max(map(len, done.out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("command", "codes"), [("lock", "123 124 125 126 127 2"), ("elect", "123 125 126 127 2")]
)
def test_the_exit_codes_of_a_held_command_stand_in_order(
    quorumctl: Run, command: str, codes: str
) -> None:
    told = quorumctl(command, "--help").out.partition("Exit code: ")[2].partition("Examples:")[0]
    assert re.findall(r"^ +(\d+)  ", told, re.MULTILINE) == codes.split()


def test_the_conditions_of_put_have_lines_of_their_own(quorumctl: Run) -> None:
    lines = quorumctl("put", "--help").out.splitlines()
    for option in ("--if-unchanged-since", "--if-absent"):
        assert any(re.match(rf" *{option} +puts all keys at once", line) for line in lines)


@pytest.mark.live
@pytest.mark.parametrize(
    ("redirection", "code"),
    [("", 0), (">&-", 0), (">/dev/full", 1), ("2>&- >/dev/full", 1), ("| head -c 0", 0)],
)
def test_the_end_of_the_process_loses_no_output_and_no_error(redirection: str, code: int) -> None:
    done = subprocess.run(
        f"{COMMAND} --help {redirection}", shell=True, capture_output=True, timeout=30, check=False
    )
    assert done.returncode == code
    assert done.stdout.endswith(b"and every change.\n") == (not redirection)
    assert done.stderr.count(b"\n") == (redirection == ">/dev/full")
    assert (b"the output of quorumctl cannot be written" in done.stderr) == bool(done.stderr)
