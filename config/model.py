"""The configuration of a node: one immutable value, and the declaration of every key.

What must hold between the values is checked in `quorumd.config.load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from quorumd.config import values
from quorumd.config.addresses import ConfiguredVoter
from quorumd.config.connection_limits import ListenerLimits
from quorumd.config.declaration import configuration, key
from quorumd.config.node_principals import NodePrincipals, node_principals, super_users
from quorumd.config.tls import SecurityProtocol, TlsConfig, protocol_map, security_protocol
from quorumd.config.tls_port import HTTP, TlsPort
from quorumd.config.values import Limit, WholeNumber
from quorumd.raft.types import Address, Endpoint

_A_DAY_MS = 86_400_000
_TEN_YEARS_MS = 3_650 * _A_DAY_MS
_MAX_BATCH_BYTES = 8 << 20
_MAX_TOTAL_BYTES = 1 << 50
_MAX_FILE_BYTES = 2**31 - 1  # positions in the offset index are 32-bit


_TIMEOUT_MS = WholeNumber(1, _A_DAY_MS, "milliseconds")


@configuration
class Config:
    """The configuration of one node. Times are milliseconds, sizes are bytes.

    `advertised_listeners` holds the same names as `listeners`, in the same order. `http_listen` of
    None means that no HTTP is served; other limits of None are none. A node whose id is not in
    `quorum_voters` is an observer.
    """

    tls_ports: tuple[TlsPort, ...] = ()
    """The listeners that are TLS, in the order of `listeners`, and then HTTP if it is."""
    listener_limits: Mapping[str, ListenerLimits] = field(default_factory=dict)
    """Of the listeners that have limits of their own, by name."""
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Of each key that was set: `file:line`, or the environment variable."""
    secret_files: frozenset[Path] = field(default_factory=frozenset, compare=False, repr=False)
    """Files that hold passwords and private keys as text: the configuration file, and files it refers to."""

    node_id: int = key(
        WholeNumber(0, values.MAX_ID),
        section="who this node is",
        required="the id of this node",
        example="1",
        doc="The id of this node, another one on each. A node whose id is not in `quorum.voters` is an "
        "observer: it has the log and does not vote.",
    )
    storage_dir: Path = key(
        values.folder,
        required="the folder of its data",
        example="/var/lib/quorumd",
        doc="The folder of its data, made ready with `quorumd format`. A relative path begins at the "
        "folder of the configuration file.",
    )
    listeners: tuple[Endpoint, ...] = key(
        values.listeners,
        section="where it is reached",
        is_list=True,
        required="where it listens",
        example="CONTROLLER://db1.example.com:9093",
        doc="The listeners, as `NAME://host:port`. Every listener serves every request; the other "
        "nodes use the first. An empty host, or `[::]`, is every interface; IPv6 addresses are "
        "written in brackets.",
    )
    advertised_listeners: tuple[Endpoint, ...] = key(
        values.advertised_listeners,
        is_list=True,
        default_text="`listeners`",
        example="CONTROLLER://db1.example.com:9093",
        doc="The addresses that others connect to, with the same names. Compulsory where a listener has no "
        "host that others could connect to.",
    )
    listener_security_protocol_map: Mapping[str, SecurityProtocol] = key(
        protocol_map,
        is_list=True,
        default={},
        default_text="all PLAINTEXT",
        example="CONTROLLER:SSL",
        doc="The protocol of each listener, as `NAME:PLAINTEXT` or `NAME:SSL`. If set, it names every "
        "listener. Each `ssl.*` key may be set for one listener alone, as `listener.name.<name>.ssl.*` "
        "with the name in lower case.",
    )
    http_listen: Address | None = key(
        values.listen_address,
        default=None,
        default_text="no HTTP",
        example="127.0.0.1:8080",
        doc="`host:port` of `/livez`, `/readyz`, `/status`, `/metrics`, and of "
        "[a page to look at](#a-page-to-look-at).",
    )
    http_security_protocol: SecurityProtocol = key(
        security_protocol,
        default=SecurityProtocol.PLAINTEXT,
        doc="The protocol of `http.listen`: PLAINTEXT or SSL. Each `ssl.*` key may be set for HTTP alone, as "
        "`http.ssl.*`.",
    )
    quorum_voters: tuple[ConfiguredVoter, ...] = key(
        values.voters,
        section="its quorum: at least one of these two",
        is_list=True,
        is_in_example=True,
        default=(),
        default_text="none",
        example="1@db1.example.com:9093,2@db2.example.com:9093,3@db3.example.com:9093",
        doc="The voters as `id@host:port`, the same line on every node; this or "
        "`quorum.bootstrap.servers` is required. Ids that are not listed here cannot become voters.",
    )
    quorum_bootstrap_servers: tuple[Address, ...] = key(
        values.addresses,
        is_list=True,
        default=(),
        default_text="none",
        example="db1.example.com:9093,db2.example.com:9093,db3.example.com:9093",
        doc="Nodes to ask who leads, as `host:port`; any id may become a voter where `quorum.voters` is "
        "not set.",
    )
    quorum_fetch_timeout_ms: int = key(
        _TIMEOUT_MS,
        section="timeouts",
        default=2_000,
        doc="A follower that has not been able to fetch from its leader for so long starts an election, "
        "and a leader that a majority has not fetched from for 1.5 times as long steps down.",
    )
    quorum_election_timeout_ms: int = key(
        _TIMEOUT_MS,
        default=1_000,
        doc="The time that a candidate waits for votes (to twice as long, at random).",
    )
    quorum_election_backoff_max_ms: int = key(
        _TIMEOUT_MS,
        default=1_000,
        doc="The longest pause after a lost election; each pause is a random one up to it, longer by up to "
        "four times what this node's last vote took to be on disk.",
    )
    quorum_request_timeout_ms: int = key(
        _TIMEOUT_MS,
        default=2_000,
        doc="The time that a request to another node may wait for its response.",
    )
    quorum_retry_backoff_ms: int = key(
        _TIMEOUT_MS,
        default=20,
        doc="The first pause before a failed request or connection is tried again; it doubles.",
    )
    quorum_retry_backoff_max_ms: int = key(
        _TIMEOUT_MS,
        default=1_000,
        doc="The longest such pause.",
    )
    quorum_auto_join: bool = key(
        values.true_or_false,
        section="its part in the quorum",
        default=False,
        doc="Take the place of a voter under this node's id whose disk was lost, without an operator.",
    )
    quorum_witness: bool = key(
        values.true_or_false,
        default=False,
        doc="Vote and acknowledge, but leave leading to others, save for the moment in which this node "
        "alone holds the newest records.",
    )
    log_segment_bytes: int = key(
        WholeNumber(4096, _MAX_FILE_BYTES, "bytes"),
        section="the log",
        default=128 << 20,
        doc="Size of a log file; at least `log.max.batch.bytes`.",
    )
    log_max_batch_bytes: int = key(
        WholeNumber(1024, _MAX_BATCH_BYTES, "bytes"),
        default=1 << 20,
        doc="Largest batch of records that is accepted from a producer. Clients' `max.request.size` "
        "should not be above.",
    )
    conditions_window_bytes: int = key(
        WholeNumber(1 << 20, _MAX_FILE_BYTES, "bytes"),
        default=64 << 20,
        doc="Memory for the keys that were written last, as far back as conditional appends may ask: nothing "
        "until there is one, and after ten minutes without.",
    )
    snapshot_max_new_record_bytes: int = key(
        WholeNumber(1, _MAX_TOTAL_BYTES, "bytes"),
        section="snapshots and retention",
        default=20 << 20,
        doc="A snapshot of the state is taken after so many bytes of new records, but not before 19 times "
        "as long as the last one took has passed, 60 s at most.",
    )
    snapshot_interval_ms: int = key(
        WholeNumber(1_000, _TEN_YEARS_MS, "milliseconds"),
        default=3_600_000,
        doc="A snapshot of the state is taken after so long, if anything is new.",
    )
    snapshot_bandwidth_bytes_per_second: int | None = key(
        Limit(1, _MAX_TOTAL_BYTES, "bytes"),
        default=None,
        doc="Limit for copying a snapshot from the leader, when this node is far behind; -1: as fast as "
        "it can.",
    )
    retention_bytes: int | None = key(
        Limit(0, _MAX_TOTAL_BYTES, "bytes"),
        default=None,
        doc="Behind a snapshot the oldest log files are deleted while log and snapshots are larger than "
        "this; -1: never. Records without a key, and those that a later record with the same key "
        "replaces, are gone with their file.",
    )
    retention_ms: int | None = key(
        Limit(0, _TEN_YEARS_MS, "milliseconds"),
        default=None,
        doc="Behind a snapshot the log files whose records are all older are deleted; -1: never. A file "
        "without a single timestamp goes with the next one that has any.",
    )
    socket_request_max_bytes: int = key(
        WholeNumber(4096, _MAX_FILE_BYTES, "bytes"),
        section="connections",
        default=100 << 20,
        doc="Largest request; at least `log.max.batch.bytes` plus 1024.",
    )
    max_connections: int = key(
        WholeNumber(16, 1_000_000),
        default=1_000,
        doc="Connections of clients that are served at once. One more displaces the one that is idle for "
        "longest, or is closed. Voters, and `quorumctl` on the node's host, have reserved slots. This, and "
        "each `max.connection*` key below, may be set for one listener too, as "
        "`listener.name.<name>.max.connections`: both hold.",
        is_listeners=True,
    )
    connections_max_idle_ms: int = key(
        WholeNumber(1_000, _A_DAY_MS, "milliseconds"),
        default=600_000,
        doc="A connection without a request for so long is closed; a waiting long poll is not idle.",
    )
    max_connections_per_ip: int | None = key(
        Limit(0, 1_000_000),
        default=None,
        doc="Connections that one address may have; -1: as many as it can get.",
        is_listeners=True,
    )
    max_connections_per_ip_overrides: Mapping[str, int] = key(
        values.counts_by_ip,
        is_list=True,
        default={},
        default_text="none",
        example="10.0.0.7:100,[2001:db8::7]:100",
        doc="Other limits for some addresses, as `ip:count`.",
        is_listeners=True,
    )
    max_connection_creation_rate: int | None = key(
        Limit(1, 1_000_000, "connections a second"),
        default=None,
        doc="New connections that are taken a second; more are closed, where Kafka lets them wait. "
        "-1: as many as come.",
        is_listeners=True,
    )
    quorum_node_principals: NodePrincipals | None = key(
        node_principals,
        section="who may speak for a node",
        default=None,
        default_text="none",
        example="User:quorumd-{id}",
        doc="The principal whose certificate speaks for a node, with `{id}` for its `node.id`; "
        "several are separated by semicolons.",
    )
    super_users: frozenset[str] = key(
        super_users,
        default=frozenset(),
        default_text="none",
        example="User:admin",
        doc="Principals that may do everything, separated by semicolons. Where `quorum.node.principals` "
        "is not set, they may speak for any node.",
    )

    def security_of(self, listener: str) -> TlsConfig | None:
        """TLS settings of a listener; None if the listener speaks plaintext."""
        return next((port.tls for port in self.tls_ports if port.name == listener), None)

    @property
    def http_tls(self) -> TlsConfig | None:
        """TLS settings of the HTTP port; None if that port speaks plaintext."""
        return self.security_of(HTTP)
