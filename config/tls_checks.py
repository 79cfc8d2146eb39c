"""Rules between the keys of TLS and the listeners, without reading any key or certificate."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from quorumd.config.addresses import ConfiguredVoter
from quorumd.config.keys import HTTP_SCOPE, KEYS, LISTENER_SCOPE, TLS_KEYS, scope_of
from quorumd.config.tls import ClientAuth, SecurityProtocol, TlsConfig
from quorumd.config.tls_port import HTTP, KEYSTORE_KEYS, TlsPort
from quorumd.raft.types import Address, Endpoint

PROTOCOL_MAP: Final = "listener.security.protocol.map"
HTTP_PROTOCOL: Final = "http.security.protocol"
_NODE_PRINCIPALS: Final = "quorum.node.principals"
_RULES: Final = "ssl.principal.mapping.rules"
_STORE_KEYS: Final = (
    "ssl.keystore.location",
    "ssl.keystore.certificate.chain",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
)
_PER_IP: Final = "max.connections.per.ip"
_PROTOCOL_NAMES: Final = ("SSL", "SASL_SSL", "SASL_PLAINTEXT")


_DIALLED: Final = (
    "is a listener that other nodes dial, by quorum.voters, by quorum.bootstrap.servers or because they are "
    "ahead on the way from plaintext to TLS"
)

JudgeOfPort = Callable[[TlsPort, Mapping[str, Any]], Iterable[tuple[str, str]]]
"""Key and text of what is wrong with keys and certificates, by the port and all values by key."""


def tls_ports(found: Mapping[str, Any]) -> Iterator[TlsPort]:
    """Listeners (and HTTP) that speak TLS, by the values that were set for each key."""
    listeners: Sequence[Endpoint] = found.get("listeners") or ()
    advertised = {each.name: each for each in found.get("advertised.listeners") or ()}
    if not listeners:
        yield from _ports_of_the_map(found)
    for listener in listeners:
        if (found.get(PROTOCOL_MAP) or {}).get(listener.name) is SecurityProtocol.SSL:
            is_first = listener is listeners[0]
            hosts = [advertised.get(listener.name, listener).host]
            if is_first:
                hosts += _own_voter_hosts(found)
            scope = scope_of(listener.name)
            tls = _tls_of(found, scope)
            yield TlsPort(
                listener.name,
                scope,
                tls,
                tuple(dict.fromkeys(hosts)),
                is_first,
                is_dialled=not is_first and _is_dialled(found, listener, scope),
                has_node_stores=_has_node_keys(found, scope, _STORE_KEYS),
            )
    if found.get(HTTP_PROTOCOL) is SecurityProtocol.SSL:
        yield TlsPort(HTTP, HTTP_SCOPE, _tls_of(found, HTTP_SCOPE))


def _ports_of_the_map(found: Mapping[str, Any]) -> Iterator[TlsPort]:
    """Of a node whose listeners are not known: nobody can say which of them the peers use."""
    for name, protocol in (found.get(PROTOCOL_MAP) or {}).items():
        if protocol is SecurityProtocol.SSL:
            scope = scope_of(name)
            has_node_stores = _has_node_keys(found, scope, _STORE_KEYS)
            yield TlsPort(name, scope, _tls_of(found, scope), has_node_stores=has_node_stores)


def unread_by(port: TlsPort, found: Mapping[str, Any], given: Container[str]) -> frozenset[str]:
    """The keys, without the port's scope, that were set and have no value there."""
    names = {key: key for key in KEYS} | {key: port.key_of(key, given) for key in TLS_KEYS}
    return frozenset(key for key, name in names.items() if name in given and name not in found)


def _has_node_keys(found: Mapping[str, Any], scope: str, keys: Iterable[str]) -> bool:
    """The port has none of these for itself."""
    return not any(scope + key in found for key in keys)


def _is_dialled(found: Mapping[str, Any], listener: Endpoint, scope: str) -> bool:
    """True if nodes dial a listener that is TLS and not the first.

    With links by TLS they dial what they are told. With plaintext links, nodes that have swapped their
    listeners already dial the one that is going to be the first: one with the stores and rules of the node.
    """
    first = found["listeners"][0].name
    if found[PROTOCOL_MAP].get(first) is not SecurityProtocol.SSL:
        is_meant = found.get(_NODE_PRINCIPALS) is not None
        return is_meant and _has_node_keys(found, scope, (*_STORE_KEYS, _RULES))
    advertised = {each.name: each for each in found.get("advertised.listeners") or ()}
    own = advertised.get(listener.name, listener)
    voters: Sequence[ConfiguredVoter] = found.get("quorum.voters") or ()
    named = {Address(each.host, each.port) for each in voters if each.id == found.get("node.id")}
    named.update(found.get("quorum.bootstrap.servers") or ())
    return Address(own.host, own.port) in named


def _own_voter_hosts(found: Mapping[str, Any]) -> list[str]:
    voters: Sequence[ConfiguredVoter] = found.get("quorum.voters") or ()
    return [voter.host for voter in voters if voter.id == found.get("node.id")]


def _tls_of(found: Mapping[str, Any], scope: str) -> TlsConfig:
    """The keys of TLS for one port: its own, else the node's."""
    given = {}
    for key, declared in TLS_KEYS.items():
        if (name := scope + key) in found or (name := key) in found:
            given[declared.field] = found[name]
    return TlsConfig(**given)


def tls_problems(
    found: Mapping[str, Any], given: Mapping[str, object]
) -> Iterator[tuple[str, str]]:
    """Key and text of each contradiction between listeners and keys.

    `given` has every key that was set, be its value one or not.
    """
    if PROTOCOL_MAP in found:
        yield from _missing_in_map(found.get("listeners") or (), found[PROTOCOL_MAP])
        for name, protocol in found[PROTOCOL_MAP].items():
            if protocol is SecurityProtocol.PLAINTEXT:
                text = (
                    f"{name} is PLAINTEXT in {PROTOCOL_MAP}: make it {name}:SSL, or remove this key"
                )
                yield from _without_tls(scope_of(name), given, text)
    elif PROTOCOL_MAP not in given:
        yield from _meant_as_tls(found, given)
    if HTTP_PROTOCOL not in given:
        text = f"HTTP is plaintext: set {HTTP_PROTOCOL}: SSL, or remove this key"
        yield from _without_tls(HTTP_SCOPE, given, text)
    for scope in ("", *(scope_of(listener.name) for listener in found.get("listeners") or ())):
        key, overrides = f"{scope}{_PER_IP}", f"{scope}{_PER_IP}.overrides"
        has_none = not found.get(overrides) and (overrides in found or overrides not in given)
        if found.get(key) == 0 and has_none:
            yield key, f"0 without {overrides} refuses all: set those, or more than 0"


def _without_tls(scope: str, given: Iterable[str], text: str) -> Iterator[tuple[str, str]]:
    """The keys of TLS of a port that is plaintext, each with this text."""
    return ((key, text) for key in given if key.startswith(scope + "ssl."))


def _missing_in_map(
    listeners: Sequence[Endpoint], protocols: Mapping[str, SecurityProtocol]
) -> Iterator[tuple[str, str]]:
    names = [listener.name for listener in listeners]
    for name in dict.fromkeys(names):
        if name in protocols:
            continue
        text = f"the listener {name} is missing: add {name}:SSL or {name}:PLAINTEXT"
        others = [other for other in protocols if other not in names]
        if close := difflib.get_close_matches(name, others, n=1):
            text += f"; is {close[0]} meant for it?"
        yield PROTOCOL_MAP, text


def _meant_as_tls(
    found: Mapping[str, Any], given: Mapping[str, object]
) -> Iterator[tuple[str, str]]:
    """Without a map all listeners are plaintext, which must not be found out later."""
    for listener in found.get("listeners") or ():
        if listener.name in _PROTOCOL_NAMES:
            text = (
                f"{listener} would be plaintext, whatever its name says: set {PROTOCOL_MAP}, for "
                f"example {listener.name}:SSL"
            )
            yield "listeners", text
    used = HTTP_PROTOCOL in given
    for key in given:
        of_listener = key.startswith(LISTENER_SCOPE) and ".ssl." in key
        if of_listener or (key.startswith("ssl.") and not used):
            text = f"no listener is TLS: set {PROTOCOL_MAP}, for example CONTROLLER:SSL"
            yield key, text
            return


def port_problems(port: TlsPort, given: Container[str]) -> Iterator[tuple[str, str]]:
    """Key and text of what a port lacks to be TLS at all."""
    tls = port.tls

    def is_missing(*keys: str) -> bool:
        return not any(name in given for key in keys for name in (key, port.scope + key))

    if is_missing(*KEYSTORE_KEYS):
        yield (
            "ssl.keystore.location",
            f"{port.name} is SSL and has no certificate: set this key to the file of its private key and "
            f"certificate chain, or {port.scope}ssl.keystore.location for it alone",
        )
    is_told = "ssl.client.auth" not in port.unread
    if port.has_peers and is_told and tls.ssl_client_auth is not ClientAuth.REQUIRED:
        which = "is the first listener, which the other nodes use" if port.is_first else _DIALLED
        yield (
            "ssl.client.auth",
            f"{port.name} {which}: they have to show certificates. Set this key to required, or "
            f"{port.scope}ssl.client.auth for it alone",
        )
    asks = port.has_peers or tls.ssl_client_auth is not ClientAuth.NONE
    if asks and is_missing("ssl.truststore.location", "ssl.truststore.certificates"):
        yield (
            "ssl.truststore.location",
            f"{port.name} asks for certificates and trusts no CA: set this key to the file of the CAs "
            "whose certificates it accepts",
        )
