"""Kafka's command line tools, one after the other in one JVM: its start is most of what each of them takes.

Not for tests that look at a tool's process, or at two tools at once: `run_java` starts one for each. What a
test run has started ends with it.
"""

from __future__ import annotations

import atexit
import base64
import functools
import signal
import subprocess
import threading
from pathlib import Path

from tests.support.kafka_jars import java_command

TIMEOUT_S = 60.0
END_S = 20.0

_PROGRAM = Path(__file__).with_name("KafkaTools.java")


def run_tool(main_class: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a tool to its end and returns exit code, stdout and stderr, whatever they are.

    Raises subprocess.TimeoutExpired after TIMEOUT_S seconds, and RuntimeError if it has ended the JVM; the
    next tool is run by a new one then.
    """
    try:
        return _tools().run(main_class, *arguments, stdin=stdin)
    except (OSError, RuntimeError, subprocess.TimeoutExpired):
        _tools.cache_clear()
        raise


@functools.cache
def _tools() -> _KafkaTools:
    tools = _KafkaTools()
    atexit.register(tools.close)
    return tools


class _KafkaTools:
    """A JVM that runs tools until it is closed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            java_command(str(_PROGRAM)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, main_class: str, *arguments: str, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None, "it was opened"
        assert answers is not None, "it was opened"
        late = threading.Timer(TIMEOUT_S, self._process.kill)
        late.start()
        try:
            words = (stdin, main_class, *arguments)
            asked.write(" ".join(base64.b64encode(word.encode()).decode() for word in words) + "\n")
            asked.flush()
            answer = answers.readline()
        finally:
            late.cancel()
        if not answer:
            if self._process.wait(END_S) == -signal.SIGKILL:
                raise subprocess.TimeoutExpired(main_class, TIMEOUT_S)
            raise RuntimeError(f"{main_class} has ended the JVM; stderr may say why")
        code, out, err = answer.removesuffix("\n").split(" ")
        said = (base64.b64decode(each).decode() for each in (out, err))
        return subprocess.CompletedProcess([main_class, *arguments], int(code), *said)

    def close(self) -> None:
        """It ends as soon as it is asked for nothing more."""
        self._process.communicate(timeout=END_S)
