"""Errors of the pipeline, and the way back from an error that went through Spark to a line of text.

An exception of a reader crosses two processes and a JVM on its way to the user: what arrives is a text
with the tracebacks of all of them, in which the reader's own sentence stands behind its class.
"""

from __future__ import annotations

import re

# A line of a Python traceback that names one of our exceptions and what it says, to the line's end.
_OURS = re.compile(r"^quorumd(?:\.\w+)*\.[A-Z]\w*: (.+)$", re.MULTILINE)
_CAUSE = re.compile(r"^(?:Caused by: )?[\w.$]+(?:Exception|Error)\b: (.+)$", re.MULTILINE)
_NO_MODULE = re.compile(r"^ModuleNotFoundError: (No module named '[^']+')", re.MULTILINE)
_NO_MORE = "An exception was thrown from the Python worker"
_TRACE_MARKS = ("\nTraceback (most recent call last)", "\nJVM stacktrace", "\n\tat ", "\n\nJVM ")


class PipelineError(Exception):
    """The base of the pipeline's errors: one sentence for users; `exit_code` is a command's."""

    exit_code = 1


class BadOption(PipelineError):
    """An option of the data source that does not exist, or a value that it can't have."""

    exit_code = 2


class JavaMissing(PipelineError):
    """There is no Java that Spark can run on."""


class SparkMissing(PipelineError):
    """PySpark is not installed, or its session does not start."""


class LogUnreachable(PipelineError):
    """The quorum did not respond in time, or the files can't be read."""


class DataLost(PipelineError):
    """Offsets that were asked for are not in the log any more, or not in this log at all."""


def plain_message(error: BaseException) -> str:
    """Text for the user: the reader's own sentence if there is one, without stack traces."""
    text = str(error)
    if ours := _OURS.findall(text):
        return str(ours[-1]).strip()
    if missing := _NO_MODULE.findall(text):
        return (
            f"Spark's workers lack something ({missing[-1]}): pip install 'quorumd[spark]' on every host, "
            "into the Python that PYSPARK_PYTHON names. quorumd-pipeline doctor --master says who lacks what."
        )
    if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
        return (
            "Spark's Java process has ended. Was it killed, or out of memory? spark.driver.memory "
            "gives it more."
        )
    for mark in _TRACE_MARKS:
        text = text.partition(mark)[0]
    if not text.strip() or _NO_MORE in text:
        causes = [each for each in _CAUSE.findall(str(error)) if _NO_MORE not in each]
        text = causes[-1] if causes else text
    return " ".join(text.split()) or type(error).__name__
