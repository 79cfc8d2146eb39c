"""Properties files are read as Java reads them."""

from __future__ import annotations

import base64
import random
import subprocess
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from quorumd.config import java_properties
from tests.support.kafka_jars import requires_java

PROGRAM = Path(__file__).with_name("JavaProperties.java")
PIECES = (
    *("a", "b", "ssl.key", "=", ":", " ", "\t", "\f", "\\", "\\\\", "\n", "\r", "\r\n", "#", "!"),
    *(
        "\\\n",
        "\\\r\n",
        "\\u00e4",
        "\\u20ac",
        "\\ud83d\\ude00",
        "\\u12",
        "\\n",
        "\\t",
        "\\=",
        "\\:",
    ),
    *("\\ ", "\\#", "ä", "€", "\U0001f600", "\x0b", "\x1c", "\x85", "\u2028", "\x00", "\ufeff"),
)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode("utf-16-be", "surrogatepass")).decode()


def ours(text: str) -> dict[str, str] | None:
    try:
        return java_properties.parse(text)
    except ValueError:
        return None


@requires_java
def test_java_reads_the_same() -> None:
    draw = random.Random(19)
    texts = ["".join(draw.choices(PIECES, k=draw.randrange(1, 16))) for _ in range(50_000)]
    done = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", str(PROGRAM)],
        input="".join(f"{encoded(text)}\n" for text in texts),
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    answers = done.stdout.splitlines()
    assert len(answers) == len(texts), done.stderr
    wrong = {}
    for text, answer in zip(texts, answers, strict=True):
        found = ours(text)
        pairs = sorted(f"{encoded(key)}:{encoded(value)}" for key, value in (found or {}).items())
        mine = "!" if found is None else " ".join(["=", *pairs])
        if sorted(answer.split()) != sorted(mine.split()):
            wrong[text] = found
    shortest = sorted(wrong.items(), key=lambda item: len(item[0]))[:10]
    assert shortest == [], f"{len(wrong)} differ"


def test_a_backslash_at_the_end_of_the_text_is_as_in_java() -> None:
    assert java_properties.parse("\\\r\n") == {}
    assert java_properties.parse("\\\n") == {"": ""}
    assert java_properties.parse("a=b\\\r\n") == {"a": "b"}


@given(st.dictionaries(st.text(), st.text()))
def test_what_is_written_is_read_again(pairs: dict[str, str]) -> None:
    assert java_properties.parse(java_properties.render(pairs)) == pairs


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    ours(text)
