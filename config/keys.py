"""Configuration keys, the variables that set them, and the keys that mistyped ones were meant to be.

Knows no file and no environment. The keys are those that `quorumd.config.model.Config` declares, the
`ssl.*` keys of `quorumd.config.tls.TlsConfig`, and the latter once more for HTTP and for each listener, for
which limits of connections may be set, too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from quorumd.config.declaration import Key, keys_of
from quorumd.config.model import Config
from quorumd.config.tls import TlsConfig

ENVIRONMENT_PREFIX = "QUORUMD_"

TLS_KEYS: Mapping[str, Key] = keys_of(TlsConfig)
KEYS: Mapping[str, Key] = MappingProxyType({**keys_of(Config), **TLS_KEYS})

LISTENER_KEYS: Mapping[str, Key] = MappingProxyType(
    {**TLS_KEYS, **{name: each for name, each in KEYS.items() if each.is_listeners}}
)
"""Keys that may be set for one listener, behind its `scope_of`."""

HTTP_SCOPE = "http."
LISTENER_SCOPE = "listener.name."
# No other program has variables that begin so: one that sets nothing is a slip.
_OWN_VARIABLES = tuple(
    ENVIRONMENT_PREFIX + part for part in ("SSL_", "HTTP_SSL_", "LISTENER_NAME_")
)
# But Kubernetes, which sets QUORUMD_SSL_SERVICE_HOST and such beside a service called quorumd-ssl.
_OF_A_SERVICE = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_[0-9]+_\w+)?)")

# Names of the same key in Kafka's own files, and names that people write instead.
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
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_").replace("-", "_")


def scope_of(listener: str) -> str:
    """Prefix of the keys of one listener alone; as in Kafka, its name is lower case."""
    return f"{LISTENER_SCOPE}{listener.lower()}."


def known_keys(listeners: Iterable[str]) -> dict[str, Key]:
    """Every key that a node with these listeners may set, by name."""
    scopes = map(scope_of, listeners)
    return {
        **KEYS,
        **{HTTP_SCOPE + name: declared for name, declared in TLS_KEYS.items()},
        **{scope + name: declared for scope in scopes for name, declared in LISTENER_KEYS.items()},
    }


def nearest(key: str, known: Iterable[str] = KEYS) -> str | None:
    """The known key that a mistyped one was probably meant to be, or None."""
    plain = key.strip().lower().replace("_", ".").replace("-", ".")
    names = {name.replace("_", ".").replace("-", "."): name for name in known}
    if plain in names:
        return names[plain]
    if plain in _SYNONYMS:
        return _SYNONYMS[plain]
    close = difflib.get_close_matches(plain, sorted(names), n=1, cutoff=0.6)
    return names[close[0]] if close else None


def nearest_variable(name: str, known: Iterable[str] = KEYS) -> str | None:
    """The variable that `name` is a slip of, or None.

    Stricter than `nearest`: variables of this prefix may belong to another program (Kubernetes sets
    QUORUMD_SERVICE_HOST beside a service called quorumd).
    """
    variables = sorted(map(variable_of, known))
    cutoff = 0.8 if is_own_variable(name) else 0.9
    close = difflib.get_close_matches(name, variables, n=1, cutoff=cutoff)
    return close[0] if close else None


def is_own_variable(name: str) -> bool:
    """True if a variable can be meant for quorumd alone."""
    return name.startswith(_OWN_VARIABLES) and not _OF_A_SERVICE.fullmatch(name)
