"""Who holds names, read from the files of a node: segments that grow, roll and go, and snapshots."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from quorumd.cli.claims_reader import NAMES_MAX, ClaimsReader, NotReadable, response_of
from quorumd.client.coordination.keys import ClaimKind, Place
from quorumd.storage.layout import log_path
from quorumd.wire.compression import CompressionType
from quorumd.wire.records import Record
from tests.support.claims_log import ClaimsLog, given_back, held, value

OTHER = "f" * 32


@pytest.fixture
def node(tmp_path: Path) -> ClaimsLog:
    return ClaimsLog(tmp_path)


def names(reader: ClaimsReader, kind: ClaimKind = ClaimKind.LOCK) -> list[str]:
    found: Sequence[dict[str, str]] = response_of(reader, reader.offset)["names"][kind.value]
    return [each["name"] for each in found]


def test_what_is_held_and_waited_for_is_read_up_to_what_is_committed(node: ClaimsLog) -> None:
    queued = Record(key=Place(ClaimKind.LOCK, "a", OTHER).key, value=value(8, claim=OTHER))
    node.append(held("a"), Record(key=b"a", value=b"no claim"))
    node.append(Record(key=b"quorumd.locks", value=b"not below it"), Record(value=b"no key"))
    node.append(queued, held("leader", kind=ClaimKind.ELECTION))
    committed = node.append(held("b", 9), codec=CompressionType.GZIP)
    node.append(given_back("a"))
    reader = ClaimsReader(node.storage_dir)
    reader.advance(committed)
    assert reader.offset == committed
    response = response_of(reader, committed)
    assert json.loads(json.dumps(response)) == response
    assert (response["offset"], response["end_offset"]) == (committed, committed)
    first, second = response["names"]["locks"]
    assert (first["name"], first["waiting"], first["holder"]["pid"]) == ("a", 1, 7)
    assert (first["holder"]["token"], first["holder"]["written_ms"]) == (0, 1_000)
    assert (second["name"], second["waiting"], second["holder"]["token"]) == ("b", 0, 6)
    assert names(reader, ClaimKind.ELECTION) == ["leader"]
    assert names(reader, ClaimKind.REGISTRATION) == []
    reader.advance(node.end_offset)
    assert names(reader) == ["a", "b"], "it waits still"
    assert response_of(reader, 0)["names"]["locks"][0]["holder"] is None


def test_a_log_that_grows_rolls_and_is_cleaned_is_followed(node: ClaimsLog) -> None:
    reader = ClaimsReader(node.storage_dir)
    reader.advance(-1)
    reader.advance(0)
    assert reader.offset == 0
    for number in range(6):
        reader.advance(node.append(held(f"n{number}")))
        assert len(names(reader)) == number + 1
        if number % 2:
            node.roll()
            node.delete_before()
    node.append(given_back("n0"))
    reader.advance(node.end_offset)
    assert names(reader) == ["n1", "n2", "n3", "n4", "n5"]


def test_a_snapshot_stands_for_what_is_deleted(node: ClaimsLog) -> None:
    reader = ClaimsReader(node.storage_dir)
    reader.advance(node.append(held("old")))
    late = ClaimsReader(node.storage_dir)
    node.append(given_back("old"), held("new", 5))
    node.roll()
    node.take_snapshot({held("new").key or b"": (value(5), 2), b"other": (b"x", 0)})
    node.delete_before()
    node.append(held("newer"))
    for each in (reader, late):
        each.advance(2)
        assert each.offset in (0, 1), "what the snapshot stands for is not all committed"
        each.advance(node.end_offset)
        assert each.offset == node.end_offset
        assert names(each) == ["new", "newer"]
        assert response_of(each, 0)["names"]["locks"][0]["holder"]["token"] == 2


def test_what_is_not_whole_yet_is_read_when_it_is(node: ClaimsLog) -> None:
    node.append(held("a"))
    path = log_path(node.folder, 0)
    whole = path.read_bytes()
    node.append(held("b"))
    both = path.read_bytes()
    reader = ClaimsReader(node.storage_dir)
    for written in (whole, whole + both[len(whole) : -5], whole + bytes(4096)):
        path.write_bytes(written)
        reader.advance(node.end_offset)
        assert names(reader) == ["a"]
    path.write_bytes(both)
    reader.advance(node.end_offset)
    assert names(reader) == ["a", "b"]


def test_a_long_log_is_read_in_pieces(node: ClaimsLog) -> None:
    for _ in range(3):
        node.append(held("a"))
        node.roll()
    reader = ClaimsReader(node.storage_dir)
    reader.advance(node.end_offset, seconds=0)
    assert reader.offset == 0
    reader.advance(node.end_offset)
    assert reader.offset == node.end_offset


def test_many_names_are_left_off_and_long_values_are_cut(node: ClaimsLog) -> None:
    count = NAMES_MAX + 3
    node.append(*(held(f"{number:04d}") for number in range(count)))
    node.append(held("api", kind=ClaimKind.REGISTRATION, text="v" * 60_000))
    reader = ClaimsReader(node.storage_dir)
    reader.advance(node.end_offset)
    response = response_of(reader, 0)
    assert len(response["names"]["locks"]) == NAMES_MAX
    assert response["left_off"] == {"locks": 3, "elections": 0, "registrations": 0}
    assert set(response["names"]["registrations"][0]["holder"]["value"]) == {"v"}
    assert len(json.dumps(response["names"]["registrations"])) < 1000


def test_whatever_a_foreign_record_says_the_response_is_short(node: ClaimsLog) -> None:
    """The library writes no such texts, but any client may: one name would hide all others on the page."""
    long = "x" * 1_000_000
    fields = json.loads(value(7)) | dict.fromkeys(("owner", "host", "comment", "since"), long)
    node.append(Record(key=b"quorumd.locks/big" + b"n" * 9000, value=json.dumps(fields).encode()))
    reader = ClaimsReader(node.storage_dir)
    reader.advance(node.end_offset)
    response = response_of(reader, 0)
    (shown,) = response["names"]["locks"]
    assert shown["holder"]["owner"] == "x" * 200
    assert len(json.dumps(response)) < 5000


def test_a_damaged_snapshot_is_said_to_be_one(node: ClaimsLog) -> None:
    node.append(held("a"))
    node.roll()
    node.take_snapshot({b"quorumd.locks/a": (value(1), 0)})
    (path,) = node.folder.glob("*.checkpoint")
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    node.delete_before()
    reader = ClaimsReader(node.storage_dir)
    with pytest.raises(NotReadable, match="is damaged"):
        reader.advance(node.end_offset)
    with pytest.raises(NotReadable, match="no such file"):
        ClaimsReader(node.storage_dir / "gone").advance(1)


@pytest.mark.live
def test_the_program_responds_to_each_line_and_ends_with_its_input(node: ClaimsLog) -> None:
    node.append(held("a"))
    command = [sys.executable, "-P", "-m", "quorumd.cli.claims_reader", str(node.storage_dir)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(end_offset: int) -> dict[str, object]:
            print(end_offset, file=process.stdin, flush=True)
            assert process.stdout is not None
            told: dict[str, object] = json.loads(process.stdout.readline())
            return told

        assert ask(1)["offset"] == 1
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 10
        log_path(node.folder, 0).rename(node.folder / "away")
        assert "no segments" in str(ask(2)["problem"])
        (node.folder / "away").rename(log_path(node.folder, 0))
        process.send_signal(signal.SIGHUP)
        assert ask(1)["end_offset"] == 1
        process.stdin.close()
        assert process.wait(10) == 0
