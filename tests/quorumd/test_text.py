"""How bytes, times, spans and sizes are shown."""

from __future__ import annotations

import pytest

from quorumd.cli.get import wants_of
from quorumd.cli.text import bytes_text, counted, duration_text, printable, timestamp_text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, "<null>"),
        (b"", ""),
        (b"plain \xc3\xbc", "plain ü"),
        (b"C:\\temp", "C:\\\\temp"),
        (b"a\tb\r\n", "a\\tb\\r\\n"),
        (b"\x00\x1b[31m", "\\x00\\x1b[31m"),
        (b"\x80 \xff", "\\x80 \\xff"),
        ("\x9b", "\\x9b"),
        ("\u202e", "\\u202e"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_every_byte_is_shown_so_that_it_can_be_told_from_others(
    data: bytes | str | None, text: str
) -> None:
    assert printable(data) == text


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_007, "2023-11-14T22:13:20.007Z"),
        (-1, "-1"),
        (-86_400_000, "-86400000"),
        (1 << 62, str(1 << 62)),
        (300_000_000_000_000, "300000000000000"),
    ],
)
def test_a_time_is_utc_and_a_number_that_is_none_stays_a_number(
    timestamp_ms: int, text: str
) -> None:
    assert timestamp_text(timestamp_ms) == text


def test_spans_and_sizes_have_the_unit_that_suits_them() -> None:
    spans = [duration_text(seconds) for seconds in (0, 9.94, 10, 599, 600, 3600)]
    assert spans == ["0.0 s", "9.9 s", "10 s", "599 s", "10 min", "60 min"]
    sizes = [bytes_text(size) for size in (0, 1023, 1024, 1536, 1 << 20, 1 << 30, 1 << 41)]
    assert sizes == ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "1.0 GiB", "2048.0 GiB"]
    assert [counted(count, "batch") for count in (0, 1, 1200)] == [
        *("0 batches", "1 batch", "1,200 batches"),
    ]
    assert counted(2, "address") == "2 addresses"


def test_only_the_keys_that_are_asked_for_are_wanted() -> None:
    assert [wants_of([b"a"], "")(key) for key in (b"a", b"ab", b"b")] == [True, False, False]
    assert [wants_of([], "a")(key) for key in (b"a", b"ab", b"b")] == [True, True, False]
    assert wants_of([], "")(b"b")
