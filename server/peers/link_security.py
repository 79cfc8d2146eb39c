"""TLS on links to other nodes: this node's certificate is shown, and the peer's has to be the peer's."""

from __future__ import annotations

from dataclasses import dataclass, field

from quorumd.security.errors import CertificateProblem, HandshakeOutcome
from quorumd.security.handshakes import Handshakes
from quorumd.security.identity import Identity, TlsSide
from quorumd.security.tls_protocols import Upper
from quorumd.security.tls_stream import TlsStream
from quorumd.server.model.node_rights import NodeRights, shown


class NotThisPeer(CertificateProblem):
    """Another node is there: the certificate is another's."""

    def __init__(self, principal: str, what: str = "") -> None:
        text = f"its certificate is for {shown(principal)}{what}"
        super().__init__(text, HandshakeOutcome.PRINCIPAL)


@dataclass(frozen=True, slots=True)
class LinkSecurity:
    """TLS as all links of a node share it."""

    side: TlsSide
    handshakes: Handshakes
    rights: NodeRights
    streams: set[TlsStream] = field(default_factory=set)
    """Streams whose handshake was done, until `open_streams` finds them closed."""

    def open_streams(self) -> list[TlsStream]:
        """Of all links, those whose handshake is done."""
        gone = [each for each in self.streams if each.is_closing()]
        self.streams.difference_update(gone)
        return list(self.streams)

    def stream(self, above: Upper, host: str, peer_id: int | None) -> TlsStream:
        """TLS below a connection to this peer, or to any node if it is None.

        `host` is what was dialled, before it was resolved: the certificate has to name it.
        """
        watch = _Watch(self, peer_id, self.side.trust)
        return TlsStream(above, self.side, self.handshakes, watch, host)


@dataclass(frozen=True, slots=True)
class _Watch:
    """Checks the peer's certificate before a byte is taken from it."""

    security: LinkSecurity
    peer_id: int | None
    trust: object
    """Trust that the handshake rests on, or something older."""

    def on_secured(self, stream: TlsStream, identity: Identity) -> None:
        """Raises CertificateProblem."""
        if self.trust != self.security.side.trust:
            # The link is not among those that are made anew; its certificate may be revoked by now.
            raise CertificateProblem(
                "completed a handshake that began with former CAs or revocation lists"
            )
        principal, rights = identity.principal, self.security.rights
        if self.peer_id is None:
            if not rights.is_node(principal):
                raise NotThisPeer(principal, ", which is no node")
        elif not rights.may_speak_for(principal, self.peer_id):
            key, permitted = rights.rule_for(self.peer_id)
            rule = f". By {key} node {self.peer_id} is {permitted}" if permitted else ""
            raise NotThisPeer(principal, rule)
        self.security.streams.add(stream)

    def on_failed(self, stream: TlsStream, problem: CertificateProblem) -> None:
        """The connection hears of it, too."""
