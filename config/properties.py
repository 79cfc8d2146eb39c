"""The properties file that Apache Kafka's own clients and tools read, as far as TLS goes.

Source: Apache Kafka documentation, "Consumer Configs", `security.protocol` and `ssl.*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quorumd.config import java_properties
from quorumd.config.declaration import keys_of
from quorumd.config.errors import BadValue, ConfigError, ConfigProblem
from quorumd.config.tls import (
    SecurityProtocol,
    StoreType,
    TlsConfig,
    security_protocol,
)

PROTOCOL_KEY = "security.protocol"
MAX_FILE_BYTES = 1 << 20
_DER_SEQUENCE = b"\x30"
# Keys that only a server reads.
_OF_SERVERS = frozenset({"ssl.client.auth", "ssl.principal.mapping.rules"})
_KEYS = {name: key for name, key in keys_of(TlsConfig).items() if name not in _OF_SERVERS}
# An empty text says something here; elsewhere it is a key that was not set.
_MAY_BE_EMPTY = frozenset({"ssl.endpoint.identification.algorithm", "ssl.cipher.suites"})


def read_properties(path: Path) -> dict[str, str]:
    """The pairs of a file: UTF-8, else ISO-8859-1 as in Java. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        text = f"cannot be read ({error.strerror}): check the file and its permissions"
        raise ConfigError([ConfigProblem(str(path), text)]) from None
    if len(raw) > MAX_FILE_BYTES:
        text = f"the file is larger than {MAX_FILE_BYTES} bytes: is it the right one?"
        raise ConfigError([ConfigProblem(str(path), text)])
    try:
        # Some editors of Windows write a byte order mark.
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        # Java reads all files so.
        text = raw.decode("iso-8859-1")
    try:
        pairs = java_properties.parse(text)
        # Half of a character that was written as two escapes is none.
        "".join((*pairs, *pairs.values())).encode()
    except UnicodeEncodeError:
        problem = "a \\u escape is half of a character: write the other half behind it"
    except ValueError as error:
        problem = (
            f"{error}: \\u is followed by four hexadecimal digits, and a backslash is written twice"
        )
    else:
        return pairs
    raise ConfigError([ConfigProblem(str(path), problem)])


def client_tls(
    pairs: Mapping[str, str], where: str = "client properties"
) -> tuple[SecurityProtocol, TlsConfig, list[str]]:
    """The protocol and the keys of a client, and the names of pairs that are not known here and do nothing.

    A store whose type is not given is PEM or PKCS12, whichever it holds: Kafka's default is JKS, which
    reads PKCS12 as well. Paths begin at the working directory, as for Kafka's tools. Raises ConfigError
    with everything that is wrong; `where` is what it calls the origin of the pairs.
    """
    problems: list[ConfigProblem] = []
    found: dict[str, Any] = {}
    protocol = SecurityProtocol.PLAINTEXT
    ignored = []
    for name, text in pairs.items():
        try:
            if name == PROTOCOL_KEY:
                protocol = security_protocol(text.strip())
            elif name not in _KEYS:
                ignored.append(name)
            elif text.strip() or name in _MAY_BE_EMPTY:
                found[_KEYS[name].field] = _KEYS[name].parse(text.strip())
        except BadValue as error:
            problems.append(ConfigProblem(where, f"{name}: {error}"))
    if problems:
        raise ConfigError(problems)
    for store in ("keystore", "truststore"):
        if (location := found.get(f"ssl_{store}_location")) is not None:
            found.setdefault(f"ssl_{store}_type", _type_of(location))
    return protocol, TlsConfig(**found), ignored


def _type_of(path: Path) -> StoreType:
    """The type of a store by its first byte. One that can't be read is reported where it is read whole."""
    try:
        with path.open("rb") as file:
            return StoreType.PKCS12 if file.read(1) == _DER_SEQUENCE else StoreType.PEM
    except OSError:
        return StoreType.PEM
