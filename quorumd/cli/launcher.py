"""A held command before it begins: a process that waits for a word of its parent, and becomes it.

Run as a file of its own: `python -I -S launcher.py PARENT GO REPORT COMMAND [ARG]...`. It reads `NAME=VALUE`
from the descriptor GO, adds that to the environment, and executes the command; if that fails, it writes the
number of the error to REPORT. It ends when its parent does, and so does the command.
"""

import ctypes
import errno
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def launch(parent: int, go: int, report: int, words: list[str]) -> None:
    """Returns only if the parent does not want the command, or if there is no such command."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    os.set_inheritable(go, False)
    os.set_inheritable(report, False)
    # Python makes an exception of it, and who is told to end before the command begins has nothing to say.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Python ignores them, and a command inherits what is ignored.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    name, is_wanted, value = os.read(go, 4096).partition(b"=")
    if not is_wanted:
        return
    os.environb[name] = value
    try:
        os.execvp(words[0], words)
    except OSError as error:
        os.write(report, b"%d" % (error.errno or 0))
    except ValueError:  # An empty name.
        os.write(report, b"%d" % errno.ENOENT)


if __name__ == "__main__":
    parent_pid, go_pipe, report_pipe = map(int, sys.argv[1:4])
    launch(parent_pid, go_pipe, report_pipe, sys.argv[4:])
