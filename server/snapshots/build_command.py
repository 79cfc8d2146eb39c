"""The command that builds a snapshot, in a process of its own with low priority.

    python -P -m quorumd.server.snapshots.build_command --directory D \\
        --end-offset N [--memory-bytes M]

Prints JSON, an object a line: {"done", "total"} (bytes) now and then, at last {"end_offset",
"epoch", "size_bytes", "records", "empty_batches"}, or {"error", "kind", "path"} with the exit code of
the error. The whole snapshot then is at its part's path, durable, to be named by the parent.
Its standard input must stay open for so long: at its end it deletes what it has written and stops.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys

NICENESS = 10

# ioprio_set(2): the number of the system call, IOPRIO_WHO_PROCESS, the class "idle".
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_WHO_PROCESS = 1
_IDLE = 3 << 13


def main() -> int:
    """Builds what the command line says; returns the exit code."""
    # Ctrl-C is for the node, which ends this process. A session of its own would be a group of its own
    # for Linux's scheduler as well, where niceness means nothing to the node's.
    os.setpgid(0, 0)
    # `systemctl kill` and a closed terminal send it to all processes: the node reads certificates again then.
    # The kernel sends it to a suspended process whose parent is killed: that one sees its input end.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _lower_priority()
    # Not before: to import takes a while, too.
    from quorumd.server.snapshots import build_and_report

    return build_and_report.main()


def _lower_priority() -> None:
    """The node comes first, for the processors and, where the kernel heeds it, for the disk."""
    os.nice(NICENESS)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None and sys.platform == "linux":
        # A refusal is no harm.
        ctypes.CDLL(None).syscall(number, _WHO_PROCESS, 0, _IDLE)


if __name__ == "__main__":
    sys.exit(main())
