"""Files of keys, certificates and passwords, which a node reads again and again while it runs."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular_file(path: Path, bytes_max: int = -1) -> bytes:
    """The first `bytes_max` bytes, or all. Raises OSError.

    What is no regular file is refused: reading a pipe would wait for a writer.
    """
    with open(path, "rb", opener=_open) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return file.read(bytes_max)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
