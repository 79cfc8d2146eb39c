"""The options of the data source: names, allowed values, defaults.

Names and meanings are those of Spark's Kafka source where it has such an option. No Spark import.
Source: Spark 4.3, "Structured Streaming + Kafka Integration Guide".
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from quorumd.client.addresses import parse_addresses
from quorumd.client.security import Security
from quorumd.config.errors import ConfigError
from quorumd.pipeline.errors import BadOption
from quorumd.raft.types import Address
from quorumd.wire.metadata_topic import PARTITION, TOPIC

EARLIEST: Final = -2
LATEST: Final = -1
TIMEOUT_MS_DEFAULT: Final = 30_000
TABLES: Final = ("records", "batches", "control", "metadata")
CONTROL_RECORDS: Final = "control_records"
LOG_RECORDS: Final = "log_records"
"""Table that the others are made of: not for users. See quorumd.pipeline.parse."""

NAMES: Final = (
    "bootstrap.servers",
    "kafka.bootstrap.servers",
    "path",
    "paths",
    "table",
    "replica",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "includeControl",
    "timeoutMs",
)
KAFKA_PREFIX: Final = "kafka."
"""Before `security.protocol` and `ssl.*`, as Spark's Kafka source has it."""
_OF_KAFKA_ALONE: Final = frozenset(
    {
        "ssl.engine.factory.class",
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    }
)
"""Keys of Java's TLS: they mean nothing here, and forbid nothing."""
_BY_LOWER_CASE = {name.lower(): name for name in NAMES}
_INT32_MAX = (1 << 31) - 1
_TIMESTAMP_MAX = (1 << 63) - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Position:
    """The begin or the end of a read: an offset, EARLIEST or LATEST; or, if it is given, a timestamp (ms)."""

    offset: int
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options. Either `servers` or `paths` is not empty; `ending` is exclusive.

    `starting` None: not given, which means LATEST to a stream and EARLIEST to a batch read.
    """

    servers: tuple[Address, ...]
    paths: tuple[str, ...]
    table: str
    replica: int | None
    starting: Position | None
    ending: Position | None
    latest_without_timestamp: bool
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    include_headers: bool
    include_control: bool
    timeout_ms: int
    security: Security | None = None

    @property
    def parsed_table(self) -> str:
        """The table whose rows are read; those of `metadata` are made of records."""
        return "records" if self.table == "metadata" else self.table


def parse_options(given: Mapping[str, str]) -> Options:
    """The options as Spark hands them over; names count without case. Raises BadOption."""
    tls = {name.lower(): value for name, value in given.items() if _is_of_tls(name)}
    values = {_known(name): value for name, value in given.items() if name.lower() not in tls}
    servers = _servers(values)
    paths = _paths(values)
    if bool(servers) == bool(paths):
        both = "not both" if servers else "neither is given"
        raise BadOption(
            "the data source needs bootstrap.servers (host:port,...) to read a live quorum, or a path to "
            f"read files: {both}"
        )
    replica = _value(values, "replica", _to_int(0, _INT32_MAX))
    if replica is not None and servers:
        raise BadOption(
            "replica chooses one of several directories; a live quorum is read from its leader"
        )
    timeout_ms = _value(values, "timeoutMs", _to_int(1, _INT32_MAX))
    return Options(
        servers=servers,
        paths=paths,
        table=_value(values, "table", _to_table) or TABLES[0],
        replica=replica,
        starting=_position(values, "starting"),
        ending=_position(values, "ending"),
        latest_without_timestamp=_value(
            values, "startingOffsetsByTimestampStrategy", _to_choice(("error", "latest"))
        )
        == "latest",
        max_offsets_per_trigger=_value(values, "maxOffsetsPerTrigger", _to_int(1, 1 << 62)),
        min_partitions=_value(values, "minPartitions", _to_int(1, 100_000)),
        fail_on_data_loss=_flag(values, "failOnDataLoss", default=True),
        include_headers=_flag(values, "includeHeaders", default=True),
        include_control=_flag(values, "includeControl", default=True),
        timeout_ms=TIMEOUT_MS_DEFAULT if timeout_ms is None else timeout_ms,
        security=_security(tls) if servers else None,
    )


def _is_of_tls(name: str) -> bool:
    return name.lower().startswith((f"{KAFKA_PREFIX}security.", f"{KAFKA_PREFIX}ssl."))


def _security(given: Mapping[str, str]) -> Security | None:
    """Raises BadOption with everything that is wrong."""
    if not given:
        return None
    pairs = {name.removeprefix(KAFKA_PREFIX): text for name, text in given.items()}
    if "ssl.keystore.key" in pairs:
        # Spark hides those options alone whose names speak of a password, a secret or a token.
        raise BadOption(
            f"{KAFKA_PREFIX}ssl.keystore.key would be shown in Spark's plans: write the key and its "
            f"certificate to a file, and name that in {KAFKA_PREFIX}ssl.keystore.location"
        )
    try:
        found = Security.from_pairs(pairs, "the options kafka.*")
    except ConfigError as error:
        raise BadOption(" ".join(str(error).split())) from None
    for name in found.ignored:
        if name not in _OF_KAFKA_ALONE:
            raise BadOption(
                f"there is no option {KAFKA_PREFIX}{name}: it is none of Kafka's clients"
            )
    return found


def _known(name: str) -> str:
    known = _BY_LOWER_CASE.get(name.lower())
    if known is not None:
        return known
    closest = difflib.get_close_matches(name.lower(), _BY_LOWER_CASE, n=1, cutoff=0.6)
    hint = f"did you mean {_BY_LOWER_CASE[closest[0]]}? " if closest else ""
    raise BadOption(f"there is no option {name}: {hint}The options are {', '.join(NAMES)}")


def _servers(values: Mapping[str, str]) -> tuple[Address, ...]:
    given = [name for name in ("bootstrap.servers", "kafka.bootstrap.servers") if name in values]
    if len(given) > 1:
        raise BadOption(f"{given[0]} and {given[1]} mean the same: give one of them")
    found = _value(values, given[0], parse_addresses) if given else None
    return found or ()


def _paths(values: Mapping[str, str]) -> tuple[str, ...]:
    if "path" in values and "paths" in values:
        raise BadOption("path and paths are both given: name all directories in one of them")
    if "paths" in values:
        return tuple(map(_to_path, _value(values, "paths", _to_list) or ()))
    parts = [part.strip() for part in values.get("path", "").split(",")]
    return tuple(_to_path(part) for part in parts if part)


def _to_path(text: str) -> str:
    """A local path, perhaps with wildcards. Raises BadOption for a URL of another kind."""
    if "://" not in text and not text.startswith("file:"):
        return text
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise BadOption(
            f"path={text}: only local files can be read. Mount or copy the directories to a place that "
            "every executor sees."
        )
    return unquote(parts.path)


def _position(values: Mapping[str, str], side: str) -> Position | None:
    """startingOffsets or startingTimestamp; endingOffsets or endingTimestamp."""
    by_offset, by_timestamp = f"{side}Offsets", f"{side}Timestamp"
    if by_offset in values and by_timestamp in values:
        raise BadOption(f"{by_offset} and {by_timestamp} are both given: give one of them")
    timestamp = _value(values, by_timestamp, _to_int(0, _TIMESTAMP_MAX))
    if timestamp is not None:
        return Position(LATEST, timestamp)
    offset = _value(values, by_offset, _to_offset)
    return None if offset is None else Position(offset)


def _value(values: Mapping[str, str], name: str, convert: Callable[[str], T]) -> T | None:
    """The converted value, None if the option is not given. Raises BadOption that names it."""
    text = values.get(name)
    if text is None:
        return None
    try:
        return convert(text.strip())
    except ValueError as error:
        raise BadOption(f"{name}={text}: {error}") from None


def _flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    chosen = _value(values, name, lambda text: _to_choice(("true", "false"))(text.lower()))
    return default if chosen is None else chosen == "true"


def _to_choice(choices: tuple[str, ...]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected {', '.join(choices[:-1])} or {choices[-1]}")
        return text

    return convert


def _to_table(text: str) -> str:
    return text if text == LOG_RECORDS else _to_choice(TABLES)(text)


def _to_int(lowest: int, highest: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not (text.isascii() and text.removeprefix("-").isdigit()):
            raise ValueError("expected a whole number")
        if not lowest <= int(text) <= highest:
            raise ValueError(f"expected a number from {lowest} to {highest}")
        return int(text)

    return convert


def _to_list(text: str) -> list[str]:
    found = _json(text)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError("expected a JSON list of texts")
    return found


def _to_offset(text: str) -> int:
    """earliest, latest, a number, or Kafka's JSON with this topic's one partition."""
    named = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    if named is not None:
        return named
    if text.startswith("{"):
        return _from_json(text)
    if not (text.isascii() and text.isdigit()):
        raise ValueError(
            f'expected earliest, latest, an offset, or JSON such as {{"{TOPIC}":{{"{PARTITION}":23}}}}'
        )
    return int(text)


def _from_json(text: str) -> int:
    found = _json(text)
    partitions = found.get(TOPIC)
    if len(found) != 1 or not isinstance(partitions, dict) or list(partitions) != [str(PARTITION)]:
        raise ValueError(f"the log has one topic and one partition, {TOPIC} and {PARTITION}")
    offset = partitions[str(PARTITION)]
    if type(offset) is not int or offset < EARLIEST:
        raise ValueError(
            f"{offset!r} is no offset; -2 stands for the earliest and -1 for the latest"
        )
    return offset


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from None
