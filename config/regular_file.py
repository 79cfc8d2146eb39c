"""Files of keys, certificates and passwords, which a node reads again and again while it runs."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

STORE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of a store of keys, certificates or revocation lists: a larger file is none, and would hold the node up."""


def read_regular_file(path: Path, bytes_max: int = STORE_BYTES_MAX) -> bytes:
    """All of it. Raises OSError, too, if it has more than `bytes_max` bytes.

    What is no regular file is refused: reading a pipe would wait for a writer.
    """
    with open(path, "rb", opener=_open) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"it is larger than {bytes_max} bytes")
    return data


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
