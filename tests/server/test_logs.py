"""Log lines: their form, what hostile bytes do to it, and that nobody waits for a reader."""

from __future__ import annotations

import io
import logging
import os
import re
import threading
from collections.abc import Iterator

import pytest

from quorumd.server.model.logs import (
    BACKLOG_MAX,
    ROOT,
    BackgroundHandler,
    LevelError,
    LineFormatter,
    Logger,
    RateLimit,
    configure,
    quoted,
)


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger(ROOT)
    handlers, level, propagate = root.handlers[:], root.level, root.propagate
    yield
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
    root.handlers[:], root.propagate = handlers, propagate
    root.setLevel(level)


def written(level: str = "debug") -> tuple[io.StringIO, BackgroundHandler]:
    stream = io.StringIO()
    return stream, configure(stream, {"QUORUMD_LOG_LEVEL": level})


def test_a_line_has_time_level_area_message_and_fields() -> None:
    stream, handler = written()
    Logger("raft").info("became leader", epoch=5, leader=None, is_voter=True, took_s=0.25)
    handler.close()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO  raft  became leader "
        r"epoch=5 leader=- is_voter=true took_s=0\.25\n",
        stream.getvalue(),
    )


def test_time_is_utc() -> None:
    record = logging.LogRecord(f"{ROOT}.raft", logging.WARNING, "", 0, "slow", None, None)
    record.created, record.msecs = 1795201200.123, 123.0
    assert LineFormatter().format(record) == "2026-11-20T19:00:00.123Z WARN  raft  slow"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("two words", '"two words"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("a=b", '"a=b"'),
        ("back\\slash", '"back\\\\slash"'),
        ("line\n2026 INFO forged", '"line\\n2026 INFO forged"'),
        ("\x1b[31mred", '"\\x1b[31mred"'),
        ("\u202egnp", '"\\u202egnp"'),
        ("café", "café"),
        (b"\x00\xffab", '"\\x00\\xffab"'),
        (b'say "hi"', '"say \\"hi\\""'),
        (b"plain", "plain"),
        (b"", '""'),
        (12, "12"),
        (None, "-"),
    ],
)
def test_a_value_is_bare_or_quoted_and_never_raw(value: object, text: str) -> None:
    assert quoted(value) == text
    assert text.isprintable()


def test_a_long_value_is_cut() -> None:
    assert len(quoted(b"x" * 10_000)) < 600
    assert len(quoted("x" * 10_000)) < 600


def test_a_message_cannot_forge_a_line() -> None:
    stream, handler = written()
    Logger("net").warning("bad\nclient\r\x1b[2J", peer="1.2.3.4:5\n")
    handler.close()
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


def test_a_traceback_follows_indented() -> None:
    stream, handler = written()
    try:
        raise ValueError("hostile\ntext \x1b")
    except ValueError as error:
        Logger("net").exception("request failed", error, peer="x")
    handler.close()
    first, *trace = stream.getvalue().splitlines()
    assert first.endswith("ERROR net   request failed peer=x")
    assert len(trace) >= 3
    assert all(line.startswith("    ") and line.isprintable() for line in trace)


@pytest.mark.parametrize(
    ("level", "expected"),
    [("", 3), ("info", 3), ("WARNING", 2), ("error", 1), ("debug", 4)],
)
def test_the_level_comes_from_the_environment(level: str, expected: int) -> None:
    stream, handler = written(level)
    logger = Logger("raft")
    logger.debug("a")
    logger.info("b")
    logger.warning("c")
    logger.error("d")
    handler.close()
    assert stream.getvalue().count("\n") == expected


def test_an_unknown_level_is_refused_with_the_permitted_ones() -> None:
    with pytest.raises(LevelError, match="QUORUMD_LOG_LEVEL is loud; permitted values are debug"):
        configure(io.StringIO(), {"QUORUMD_LOG_LEVEL": "loud"})


@pytest.mark.long
def test_a_reader_who_does_not_read_holds_nobody_up() -> None:
    reading, writing = os.pipe()
    dropped = []
    with open(writing, "w") as stream:
        handler = configure(stream, {})
        handler.on_drop = lambda: dropped.append(1)
        logger = Logger("raft")
        # 64 KiB fit into the pipe; the thread takes one helping and then waits for the reader.
        for n in range(BACKLOG_MAX * 3):
            logger.info("state change", number=n)
        assert len(dropped) >= BACKLOG_MAX / 2
        assert not handler.flush_within(0.01)

        text: list[str] = []
        with open(reading) as source:
            reader = threading.Thread(target=lambda: text.extend(source))
            reader.start()
            assert handler.flush_within(10)
            logger.info("the end")
            handler.close()
            stream.close()
            reader.join(10)
    assert text[0].endswith("number=0\n")
    assert text[-1].rstrip().endswith("the end") or "lines dropped" in text[-1]
    assert any("lines dropped: this output is read too slowly" in line for line in text)


def test_a_reader_who_has_gone_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = open(writing, "w")  # noqa: SIM115 - closing it fails, as its reader has gone
    handler = configure(stream, {})
    Logger("raft").info("to nobody")
    handler.close()
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_lines_that_strangers_cause_are_limited_and_counted() -> None:
    now = [100.0]
    limit = RateLimit(per_second=2, burst=3, clock=lambda: now[0])
    assert [limit.take() for _ in range(5)] == [0, 0, 0, None, None]
    now[0] += 0.5
    assert [limit.take() for _ in range(2)] == [2, None]
    now[0] += 100
    assert [limit.take() for _ in range(4)] == [1, 0, 0, None]
