"""A TLS 1.3 client's requests for new keys, thousands of them, as no library sends them."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_REQUEST: Final = bytes((24, 0, 0, 1, 1)) + b"\x16"
"""KeyUpdate, update_requested, as a handshake message; the type of what the record holds is behind it."""
_DATA: Final = b"\x17"


def key_updates(key_log: Path, count: int, data: bytes) -> bytes:
    """So many, and then `data`, of the client whose secrets are logged there and that has sent nothing yet.

    The cipher suite is TLS_AES_256_GCM_SHA384. Source: RFC 8446, 4.6.3, 5.2, 5.3 and 7.2.
    """
    lines = key_log.read_text().splitlines()
    [secret] = (
        bytes.fromhex(x.split()[2]) for x in lines if x.startswith("CLIENT_TRAFFIC_SECRET_0")
    )
    records = []
    for number in range(count + 1):
        content = _REQUEST if number < count else data + _DATA
        header = b"\x17\x03\x03" + (len(content) + 16).to_bytes(2, "big")
        # The first record of each key: the number in its nonce is 0.
        key, nonce = _expand(secret, b"key", 32), _expand(secret, b"iv", 12)
        records.append(header + AESGCM(key).encrypt(nonce, content, header))
        secret = _expand(secret, b"traffic upd", 48)
    return b"".join(records)


def _expand(secret: bytes, label: bytes, size: int) -> bytes:
    label = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes((len(label),)) + label + b"\x00"
    return hmac.digest(secret, info + b"\x01", hashlib.sha384)[:size]
