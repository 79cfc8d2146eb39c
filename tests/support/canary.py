"""Private keys and passwords that tests have made: in the whole run no output may hold one of them.

Searched are the logs of nodes, what `quorumd` and `quorumctl` print, and what each test prints and logs.
"""

from __future__ import annotations

import re
from pathlib import Path

LINE_LENGTH_MIN = 40
KEY_FILES = (".key", ".pem")
_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\n[^-]+-----END [A-Z ]*PRIVATE KEY-----")
_secrets: set[str] = set()


def remember_password(password: str) -> str:
    """The password, from now on searched for."""
    _secrets.add(password)
    return password


def remember_key(pem: bytes) -> bytes:
    """The private key (PEM), each of its lines from now on searched for."""
    lines = pem.decode().splitlines()[1:-1]
    _secrets.update(line for line in lines if len(line) >= LINE_LENGTH_MIN)
    return pem


def remember_keys_below(folder: Path) -> int:
    """As `remember_key`, of all keys in the files below a folder. Returns how many there are."""
    files = [path.read_bytes() for path in folder.rglob("*") if path.suffix in KEY_FILES]
    found = [key for data in files for key in _KEY.findall(data)]
    for key in found:
        remember_key(key)
    return len(found)


def check(text: str, where: str) -> None:
    """Raises AssertionError, which says nothing of the secret, if the text holds one."""
    if any(secret in text for secret in _secrets):
        raise AssertionError(f"{where} holds a private key or a password")
