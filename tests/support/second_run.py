"""What failed in a whole run, once more, and alone: `python -m tests.support.second_run EXIT_CODE`.

Live tests run four at a time on two cores, with Kafka, Spark and a browser beside them. What fails there and
not alone is a defect of the test or of quorumd as well, and this run's output keeps its traceback; but it
stops nobody else's change. More than `FAILED_MAX` failures, or a run that did not come to its end, are no
such case: the exit code of the whole run stays.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
"""Where pytest keeps the names of what failed; of that run alone, if it was given `--cache-clear`."""
FAILED_MAX = 2
TESTS_FAILED = 1
"""pytest's exit code for a run that came to its end."""


def main(arguments: list[str]) -> int:
    """The exit code of the second run, or the first one's, given as the only argument."""
    (first,) = map(int, arguments)
    if first != TESTS_FAILED or not FAILED.exists():
        return first
    failed = list(json.loads(FAILED.read_text()))
    if len(failed) > FAILED_MAX:
        return first
    print("Once more, alone:", *failed, sep="\n  ", flush=True)
    command = (sys.executable, "-m", "pytest", "--last-failed", "--last-failed-no-failures", "none")
    second = subprocess.run(command, check=False).returncode
    if second == 0:
        print(
            "Passed alone. They fail beside others, which is a defect to mend:", *failed, sep="\n  "
        )
    return second


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
