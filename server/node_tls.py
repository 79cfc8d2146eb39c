"""TLS of one node: the credentials of its listeners, links and HTTP, renewed while it runs.

Loaded only where something is TLS: a node without it imports no library for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from math import isfinite
from typing import Final

from quorumd.config.model import Config
from quorumd.config.tls import ClientAuth
from quorumd.config.tls_port import HTTP, TlsPort
from quorumd.security.credentials import Credentials
from quorumd.security.errors import CertificateProblem, HandshakeOutcome
from quorumd.security.expiry import Expiry, expiries
from quorumd.security.handshakes import Handshakes
from quorumd.security.identity import Identity
from quorumd.security.material import Material
from quorumd.security.reload import WatchedSet, Watcher
from quorumd.security.tls_stream import TlsStream, secured
from quorumd.server.certificate_checks import port_problems, port_warnings, secret_warnings
from quorumd.server.http.http_server import HttpTls
from quorumd.server.model.logs import Logger, RateLimit
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.node_rights import NodeRights
from quorumd.server.net.listeners import Listeners
from quorumd.server.net.renewal import Renewal
from quorumd.server.peers.link_security import LinkSecurity

LOG = Logger("tls")

SWEEP_S: Final = 5.0
WARN_AGAIN_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class _Side:
    """One listener, or HTTP: `credentials` are what connections to it get."""

    port: TlsPort
    """As it is configured."""
    credentials: Credentials
    watched: WatchedSet


class NodeTls:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        handshakes: Handshakes,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """Reads all files. Raises CertificateProblem for what `certificate_problems` finds at the start."""
        self._handshakes = handshakes
        self._rights = NodeRights(config.quorum_node_principals, config.super_users)
        self._metrics = metrics
        self._wall_s = wall_s
        self._peers_listener = config.listeners[0].name
        self.links: LinkSecurity | None = None
        """For connections to other nodes; None: they are plaintext."""
        self._sides: dict[str, _Side] = {}
        self._config = config
        for port in config.tls_ports:
            self._add(port)
        self._watcher = Watcher([side.watched for side in self._sides.values()], self)
        self._renewal: Renewal | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._warned_s = 0.0
        for name in self._sides:
            self._note_loaded(name)

    def _add(self, port: TlsPort) -> None:
        tls = port.tls
        if port.name == HTTP and tls.ssl_client_auth is ClientAuth.REQUIRED:
            # Probes have no certificate: the pages refuse them, not the handshake.
            tls = replace(tls, ssl_client_auth=ClientAuth.REQUESTED)
        credentials = Credentials(tls, is_server=True)
        users = [credentials]
        if port.is_first:
            own = Credentials(port.tls, is_server=False, material=credentials.material)
            users.append(own)
            self.links = LinkSecurity(own, self._handshakes, self._rights)
        watched = WatchedSet(port, users, partial(self._problems, port))
        self._sides[port.name] = _Side(port, credentials, watched)

    def _problems(self, port: TlsPort, material: Material) -> list[tuple[str, str]]:
        """Problems of a new set: it counts for all that have the same stores, or for none."""
        found = (
            port_problems(each, self._rights, self._config.node_id, material)
            for each in self._config.tls_ports
            if each.has_stores_of(port)
        )
        return list(dict.fromkeys(problem for problems in found for problem in problems))

    @property
    def sides(self) -> Mapping[str, Credentials]:
        """Of the listeners that are TLS, by name."""
        return {name: side.credentials for name, side in self._sides.items() if name != HTTP}

    def takes_nodes(self, listener: str) -> bool:
        """True if a certificate that this listener takes may be a node's.

        The listener of the peers, and others that nodes dial. One for clients may trust CAs that would give
        anybody the name of a node, or map names to it: on it a certificate is a node's only if it would be on
        the listener of the peers as well. As long as that one is plaintext, certificates protect nothing.
        """
        side, peers = self._sides[listener], self._sides.get(self._peers_listener)
        if side.port.has_peers or peers is None:
            return True
        own, theirs = side.credentials, peers.credentials
        has_their_rules = (
            side.port.tls.ssl_principal_mapping_rules == peers.port.tls.ssl_principal_mapping_rules
        )
        return has_their_rules and set(own.material.roots) <= set(theirs.material.roots)

    def may_speak_for(self, listener: str, principal: str, replica_id: int) -> bool:
        """True if a certificate with this principal, on this listener, is that replica's."""
        return self.takes_nodes(listener) and self._rights.may_speak_for(principal, replica_id)

    def http(self) -> HttpTls | None:
        """None: HTTP is plaintext."""
        side = self._sides.get(HTTP)
        if side is None:
            return None
        watch = _HttpWatch(self._metrics.tls_handshakes)
        below = partial(secured, side=side.credentials, handshakes=self._handshakes, watcher=watch)
        return HttpTls(below, side.port.tls.ssl_client_auth is ClientAuth.REQUIRED)

    # -- life

    def open(self, listeners: Listeners) -> None:
        """Watch the files, and end connections when what they rest on does."""
        links = list if self.links is None else self.links.open_streams
        self._renewal = Renewal(lambda: listeners.connections, listeners.is_peer, links)
        self._watcher.open()
        self._sweep()

    def close(self) -> None:
        """Stop that."""
        self._watcher.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()

    def read_again(self) -> None:
        """Read the files now, on SIGHUP: the operator has written them whole."""
        LOG.info("SIGHUP: reading keys and certificates")
        self._watcher.reload_now()

    def _sweep(self) -> None:
        assert self._renewal is not None, "open"
        now_s = self._wall_s()
        self._renewal.end_expired(now_s)
        if now_s >= self._warned_s + WARN_AGAIN_S:
            self._warned_s = now_s
            for text in self.warnings():
                LOG.warning(text)
        self._sweep_timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    # -- as the owner of the watcher

    def on_loaded(self, name: str, has_new_trust: bool) -> None:
        """A new set of files is in use."""
        self._note_loaded(name)
        own = self._expiries(name)[0]
        LOG.info(
            "new certificates are in use",
            listener=name,
            subject=own.subject,
            ends=when(own.at_s),
            connections="made anew" if has_new_trust else "stay",
        )
        self._warned_s = 0.0
        if has_new_trust and name != HTTP and self._renewal is not None:
            self._renewal.renew_connections(name)
            if name == self._peers_listener:
                self._renewal.renew_links()

    def on_bad(self, name: str, problems: Sequence[str], is_news: bool) -> None:
        """The set on disk is not used; the one before is."""
        self._metrics.certificates.reload_failures += 1
        if is_news:
            for text in problems:
                LOG.error(
                    "new files are not used, those read before stay: mend them",
                    listener=name,
                    reason=text,
                )

    def on_mended(self, name: str) -> None:
        """The files hold again what is in use."""
        LOG.info("the files hold again what is in use", listener=name)

    def _note_loaded(self, name: str) -> None:
        known = self._metrics.certificates.lifetimes
        for label in [label for label in known if label[0] == name]:
            del known[label]
        for each in self._expiries(name):
            known[name, each.role, each.subject] = each.begun_s, each.at_s
        self._metrics.certificates.loaded_at_s = self._wall_s()

    def _expiries(self, name: str) -> list[Expiry]:
        return expiries(self._sides[name].credentials.material)

    # -- what is seen

    def warnings(self) -> list[str]:
        """Warnings about dangers now, and problems to come, in words."""
        return list(self._warnings())

    def _warnings(self) -> Iterator[str]:
        now_s = self._wall_s()
        for name, side in self._sides.items():
            for text in side.watched.problems:
                yield (
                    f"{_place(name)}: the new files are not used, those read before stay: {text}"
                )
            for each in self._expiries(name):
                if each.is_soon(now_s):
                    yield f"{_place(name)}: {_ending(each, now_s)}"
        yield from secret_warnings(self._config)
        # Several listeners mostly share their files.
        found = (
            port_warnings(side.port, side.credentials.material) for side in self._sides.values()
        )
        yield from dict.fromkeys(f"{key}: {text}" for texts in found for key, text in texts)
        for listener in self._config.listeners:
            if self.sides and listener.name not in self.sides:
                yield (
                    f"{_place(listener.name)} is plaintext: whoever reaches it reads and writes all records "
                    "and changes the voters. Move its clients to a TLS listener, and remove it"
                )
        if self.links is not None and self._rights.is_open:
            yield (
                "any certificate that is trusted may speak for any node: set quorum.node.principals, "
                "for example to User:CN=quorumd-{id}"
            )

    def status(self, name: str) -> dict[str, object]:
        """Part of `/status` about a listener, or about HTTP, beside its protocol."""
        side = self._sides[name]
        return {
            "client_auth": side.port.tls.ssl_client_auth.value,
            "certificates": [
                {
                    "role": each.role,
                    "subject": each.subject,
                    "ends": when(each.at_s),
                    "ends_in_s": round(each.at_s - self._wall_s()) if isfinite(each.at_s) else None,
                }
                for each in self._expiries(name)
            ],
            "reload_problems": list(side.watched.problems),
        }


class _HttpWatch:
    """Hears of the handshakes of HTTP."""

    def __init__(self, counts: dict[tuple[str, str], int]) -> None:
        """`counts` is by listener and outcome."""
        self._counts = counts
        self._lines = RateLimit(per_second=2, burst=20)
        # From the start: Prometheus sees no increase in a counter that begins with its first event.
        for outcome in HandshakeOutcome:
            counts[HTTP, outcome] = 0

    def on_secured(self, stream: TlsStream, identity: Identity) -> None:
        """Pages ask the stream for the identity."""
        self._counts[HTTP, HandshakeOutcome.DONE] += 1

    def on_failed(self, stream: TlsStream, problem: CertificateProblem) -> None:
        self._counts[HTTP, problem.outcome] += 1
        # A connection without a byte is a port check.
        if not stream.has_spoken or (more := self._lines.take_fields()) is None:
            return
        peer = stream.get_extra_info("peername")
        at = f"{peer[0]}:{peer[1]}" if peer else "?"
        fields: dict[str, object] = {"why": problem.outcome.value, "reason": str(problem)}
        LOG.warning("TLS handshake failed", listener=HTTP, peer=at, **fields, **more)


def when(at_s: float) -> str:
    """A time in UTC, for people and machines."""
    try:
        return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, ValueError):
        return "never"


def _place(name: str) -> str:
    return "HTTP" if name == HTTP else f"listener {name}"


_WHAT: Final = {
    "own": "this node's certificate",
    "ca": "the CA's certificate",
    "crl": "the revocation list of",
}


def _ending(each: Expiry, now_s: float) -> str:
    left_s = each.at_s - now_s
    days, hours = divmod(int(abs(left_s)) // 3600, 24)
    span = f"{days} d {hours} h"
    verb = f"ends in {span}" if left_s > 0 else f"ended {span} ago: whoever needs it is refused"
    return f"{_WHAT[each.role]} {each.subject} {verb}"
