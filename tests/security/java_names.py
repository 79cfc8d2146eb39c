"""Asks Java and Kafka what a certificate's subject is, and whom mapping rules make of it."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.kafka_jars import kafka_libs

_PROGRAM = Path(__file__).with_name("JavaNames.java")


def ask(questions: Sequence[tuple[str, *tuple[bytes, ...]]]) -> list[str | None]:
    """An answer for each ("name", DER), ("certificate", DER), ("rule", rules, name); None: an exception."""
    lines = [
        " ".join((kind, *(base64.b64encode(each).decode() for each in data)))
        for kind, *data in questions
    ]
    done = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_libs()}/*", str(_PROGRAM)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    answers = done.stdout.splitlines()
    assert len(answers) == len(questions), done.stderr
    return [
        base64.b64decode(each[1:]).decode("utf-8") if each[0] == "=" else None for each in answers
    ]
