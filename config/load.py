"""File and environment -> `Config`, or one `ConfigError` that lists every problem at once.

Owns what must hold between values (one id twice, a batch larger than a segment). Opens the
configuration file, those that its references name, and nothing else: whether a port is free or a folder
writable shows at start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from quorumd.config.connection_limits import ConnectionLimits, ListenerLimits
from quorumd.config.declaration import NO_DEFAULT, keys_of
from quorumd.config.errors import BadValue, ConfigError, ConfigProblem
from quorumd.config.keys import ENVIRONMENT_PREFIX, HTTP_SCOPE, KEYS, TLS_KEYS, scope_of
from quorumd.config.model import Config
from quorumd.config.references import FileReference
from quorumd.config.secrets import Secret
from quorumd.config.source import NO_FILE, Entries, read
from quorumd.config.tls_checks import (
    HTTP_PROTOCOL,
    PROTOCOL_MAP,
    JudgeOfPort,
    port_problems,
    tls_ports,
    tls_problems,
    unread_by,
)
from quorumd.config.tls_port import KEYSTORE_KEYS, RENEWED, TlsPort
from quorumd.config.values import is_wildcard
from quorumd.raft.types import Address

__all__ = ["ConfigError", "load"]

_NODE_KEYS = keys_of(Config)
REQUEST_OVERHEAD_BYTES = 1024
"""Bytes that a Produce request may hold beside its batch: header, topic, client id."""


def load(path: Path | None, environ: Mapping[str, str], judge: JudgeOfPort | None = None) -> Config:
    """The configuration in `path`, overridden by the QUORUMD_ variables of `environ`.

    Without a path it is controller.yaml of the working directory; if that is not there, `environ`
    has to set everything. A relative `storage.dir` is one beside the file, wherever the process
    was started; so is every other file. `judge` is asked about each port with TLS whose keys are sound so
    far: it reads the files of keys and certificates.
    Raises ConfigError with every problem that the file and the environment have.
    """
    entries = read(path, environ)
    folder = _folder_of(entries.path)
    problems = list(entries.problems)
    found = _parse(entries, folder, problems)
    _check_presence(entries, problems)
    _Checks(entries, found, problems).run()
    problems += _tls_problems(entries, found, judge)
    if problems:
        raise ConfigError(sorted(problems, key=_order_of))
    given = {KEYS[key].field: value for key, value in found.items() if key in _NODE_KEYS}
    given["advertised_listeners"] = _in_order_of_listeners(found)
    return Config(
        **given,
        tls_ports=tuple(
            port._replace(references=_references(entries, environ, folder, port))
            for port in tls_ports(found)
        ),
        listener_limits=_limits_of_listeners(found),
        places={key: entry.where for key, entry in entries.by_key.items()},
        secret_files=frozenset(
            path
            for key, entry in entries.by_key.items()
            if entries.known[key].parse is Secret
            for path in entry.files
        ),
    )


def _folder_of(path: Path) -> Path:
    """Folder at which relative paths begin. Raises ConfigError."""
    try:
        return path.absolute().parent
    except FileNotFoundError:
        text = "the working directory of this process was removed: start it in one that is there"
        raise ConfigError([ConfigProblem(str(path), text)]) from None


def _parse(entries: Entries, folder: Path, problems: list[ConfigProblem]) -> dict[str, Any]:
    """Values by key; a text that is no value of its key becomes a problem."""
    found: dict[str, Any] = {}
    for key, entry in entries.by_key.items():
        declared = entries.known[key]
        try:
            value = declared.parse(entry.text)
            found[key] = folder / value if isinstance(value, Path) else value
        except BadValue as error:
            text = str(error)
            if entry.written:
                # The text of a variable or a file may be a secret that is in the wrong place.
                example = declared.example or declared.default
                text = f"{entry.written} stands for no value of this key: one is {example}"
            problems.append(ConfigProblem(entry.where, f"{key}: {text}"))
    return found


def _tls_problems(
    entries: Entries, found: Mapping[str, Any], judge: JudgeOfPort | None
) -> list[ConfigProblem]:
    given = {**dict.fromkeys(entries.unreadable), **entries.by_key}
    named = [(key, text, key) for key, text in tls_problems(found, given)]
    for each in tls_ports(found):
        port = each._replace(unread=unread_by(each, found, given))
        if "advertised.listeners" in port.unread:
            port = port._replace(hosts=())
        beside = HTTP_PROTOCOL if port.scope == HTTP_SCOPE else PROTOCOL_MAP
        lacks = dict(port_problems(port, given))
        named += [(port.key_of(key, given), text, beside) for key, text in lacks.items()]
        if judge is None or not (port.has_certificate or port.unread.intersection(KEYSTORE_KEYS)):
            continue
        beside = port.key_of("ssl.keystore.location", given)
        for key, text in judge(port, found):
            if key not in lacks:
                named.append((port.key_of(key, given), text, beside))
    problems = []
    for key, text, beside in dict.fromkeys(named):
        # A key that is missing is searched for beside another.
        entry = entries.by_key.get(key) or entries.by_key.get(beside)
        where = entry.where if entry else str(entries.path)
        problems.append(ConfigProblem(where, f"{key}: {text}"))
    return problems


def _limits_of_listeners(found: Mapping[str, Any]) -> dict[str, ListenerLimits]:
    """By name, those of listeners that have any."""
    limits = {}
    for listener in found["listeners"]:
        scope = scope_of(listener.name)
        own = ListenerLimits(
            found.get(scope + "max.connections"),
            ConnectionLimits(
                found.get(scope + "max.connections.per.ip"),
                found.get(scope + "max.connections.per.ip.overrides", {}),
                found.get(scope + "max.connection.creation.rate"),
            ),
        )
        if own != ListenerLimits():
            limits[listener.name] = own
    return limits


def _references(
    entries: Entries, environ: Mapping[str, str], folder: Path, port: TlsPort
) -> dict[str, FileReference]:
    """By field of the port's keys of TLS, those that are in files which a node watches."""
    found = {}
    for key in RENEWED:
        name, declared = port.key_of(key, entries.by_key), TLS_KEYS[key]
        entry = entries.by_key.get(name)
        if entry is not None and entry.written and entry.files:
            found[declared.field] = FileReference(
                name, declared.parse, entry.written, environ, folder, entry.files
            )
    return found


def _check_presence(entries: Entries, problems: list[ConfigProblem]) -> None:
    given = entries.by_key.keys() | entries.unreadable
    where = str(entries.path)
    no_file = ConfigProblem(where, f"{NO_FILE}, or set its keys by {ENVIRONMENT_PREFIX} variables")
    if not entries.has_file and not given:
        problems.append(no_file)
        return
    missing = []
    for key in KEYS.values():
        if key.required and key.name not in given:
            text = f"{key.name} is missing: set it to {key.required}, for example {key.example}"
            missing.append(ConfigProblem(where, text))
    if not given & {"quorum.voters", "quorum.bootstrap.servers"}:
        text = (
            "quorum.voters or quorum.bootstrap.servers is missing: set one of them, so that this "
            "node finds its quorum, for example quorum.voters: 1@db1.example.com:9093"
        )
        missing.append(ConfigProblem(where, text))
    if missing and not entries.has_file:
        missing.insert(0, no_file)
    problems += missing


class _Checks:
    """The rules between values. A value that did not parse is left out, not reported again."""

    def __init__(
        self, entries: Entries, found: dict[str, Any], problems: list[ConfigProblem]
    ) -> None:
        self._entries = entries
        self._found = found
        self._problems = problems

    def run(self) -> None:
        self._no_duplicates("quorum.voters", "id", lambda voter: voter.id)
        self._no_duplicates("quorum.voters", "address", lambda voter: str(Address(*voter[1:])))
        self._no_duplicates("quorum.bootstrap.servers", "address", str)
        self._no_duplicates("listeners", "name", lambda listener: listener.name)
        self._no_duplicates("listeners", "address", lambda listener: str(Address(*listener[1:])))
        self._no_duplicates("advertised.listeners", "name", lambda listener: listener.name)
        self._http_port_is_free()
        self._advertised_listeners_fit()
        self._at_most("quorum.retry.backoff.ms", "quorum.retry.backoff.max.ms")
        self._at_most("log.max.batch.bytes", "log.segment.bytes")
        self._at_most("log.max.batch.bytes", "socket.request.max.bytes", REQUEST_OVERHEAD_BYTES)

    def _value(self, key: str) -> Any:
        """The value given for a key, else its default, else None."""
        if key in self._entries.by_key or key in self._entries.unreadable:
            return self._found.get(key)
        default = KEYS[key].default
        return None if default is NO_DEFAULT else default

    def _report(self, key: str, text: str) -> None:
        self._problems.append(ConfigProblem(self._entries.by_key[key].where, f"{key}: {text}"))

    def _no_duplicates(self, key: str, what: str, part: Callable[[Any], object]) -> None:
        for value in _repeated(part(item) for item in self._value(key) or ()):
            self._report(key, f"{what} {value} occurs more than once: each needs its own")

    def _http_port_is_free(self) -> None:
        http, listeners = self._value("http.listen"), self._value("listeners")
        for listener in listeners or ():
            overlap = http and (
                http.host == listener.host or is_wildcard(http.host) or is_wildcard(listener.host)
            )
            if overlap and http.port == listener.port:
                self._report("http.listen", f"port {http.port} is that of {listener}: take another")

    def _advertised_listeners_fit(self) -> None:
        listeners, advertised = self._value("listeners"), self._value("advertised.listeners")
        if listeners is None:
            return
        if advertised is not None:
            names = sorted({listener.name for listener in listeners})
            if sorted({listener.name for listener in advertised}) != names:
                text = f"the names have to be those of listeners: {', '.join(names)}"
                self._report("advertised.listeners", text)
        elif "advertised.listeners" not in self._entries.by_key.keys() | self._entries.unreadable:
            for listener in listeners:
                if is_wildcard(listener.host):
                    text = (
                        f"{listener} names no host that another node could connect to: set "
                        f"advertised.listeners too, for example "
                        f"{listener.name}://db1.example.com:{listener.port}"
                    )
                    self._report("listeners", text)

    def _at_most(self, key: str, limit_key: str, room: int = 0) -> None:
        value, limit = self._value(key), self._value(limit_key)
        if value is None or limit is None or value + room <= limit:
            return
        plus = f" plus {room}" if room else ""
        blamed, other = (key, limit_key) if key in self._entries.by_key else (limit_key, key)
        rule = f"{key} ({value}){plus} must not be above {limit_key} ({limit})"
        self._report(blamed, f"{rule}: change this value or {other}")


def _repeated(values: Iterable[object]) -> list[object]:
    seen: set[object] = set()
    repeated: dict[object, None] = {}
    for value in values:
        if value in seen:
            repeated[value] = None
        seen.add(value)
    return list(repeated)


def _in_order_of_listeners(found: Mapping[str, Any]) -> tuple[Any, ...]:
    by_name = {listener.name: listener for listener in found.get("advertised.listeners", ())}
    return tuple(by_name.get(listener.name, listener) for listener in found["listeners"])


def _order_of(problem: ConfigProblem) -> tuple[int, int]:
    """By line within the file, then what concerns the file as a whole, then the environment."""
    _, _, line = problem.where.rpartition(":")
    if line.isdigit():
        return 0, int(line)
    return (2, 0) if problem.where.startswith("environment") else (1, 0)
