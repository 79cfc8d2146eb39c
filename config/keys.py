"""Which keys there are, which variables set them, and what a mistyped one was meant to be.

Knows no file and no environment. The keys are those that `quorumd.config.model.Config` declares.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from quorumd.config.declaration import Key, keys_of
from quorumd.config.model import Config

ENVIRONMENT_PREFIX = "QUORUMD_"

KEYS: Mapping[str, Key] = keys_of(Config)

# What the same thing is called in Kafka's own files, and what people write instead.
_SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        "controller.quorum.voters": "quorum.voters",
        "controller.quorum.bootstrap.servers": "quorum.bootstrap.servers",
        "bootstrap.servers": "quorum.bootstrap.servers",
        "broker.id": "node.id",
        "log.dir": "storage.dir",
        "log.dirs": "storage.dir",
        "data.dir": "storage.dir",
        "http.port": "http.listen",
    }
)


def variable_of(key: str) -> str:
    """The environment variable that overrides this key."""
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_")


def nearest(key: str) -> str | None:
    """The known key that a mistyped one was probably meant to be, or None."""
    plain = key.strip().lower().replace("_", ".").replace("-", ".")
    if plain in KEYS:
        return plain
    if plain in _SYNONYMS:
        return _SYNONYMS[plain]
    close = difflib.get_close_matches(plain, sorted(KEYS), n=1, cutoff=0.6)
    return close[0] if close else None


def nearest_variable(name: str) -> str | None:
    """The variable that `name` is a slip of, or None.

    Stricter than `nearest`: variables of this prefix may belong to somebody else (Kubernetes sets
    QUORUMD_SERVICE_HOST beside a service called quorumd).
    """
    known = sorted(variable_of(key) for key in KEYS)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
    return close[0] if close else None
