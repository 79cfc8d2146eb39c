"""Private keys and passwords that tests have made: in the whole run no output may hold one of them.

Searched are the logs of nodes, what `quorumd` and `quorumctl` print, and what each test prints and logs.
"""

from __future__ import annotations

LINE_LENGTH_MIN = 40
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


def check(text: str, where: str) -> None:
    """Raises AssertionError, which says nothing of the secret, if the text holds one."""
    if any(secret in text for secret in _secrets):
        raise AssertionError(f"{where} holds a private key or a password")
