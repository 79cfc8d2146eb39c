"""One side's keys, certificates and rules as they are now; streams ask at each new connection."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable

from quorumd.config.node_principals import USER
from quorumd.config.tls import TlsConfig
from quorumd.security.contexts import Contexts
from quorumd.security.distinguished_name import end_of, subject_of
from quorumd.security.errors import CertificateProblem, HandshakeOutcome
from quorumd.security.handshake_failures import Failure, presented_chain
from quorumd.security.host_names import dialled_name
from quorumd.security.identity import ANONYMOUS, Identity
from quorumd.security.mapping_rules import BadRule, rules_of
from quorumd.security.material import Material, read_material


class Credentials:
    """A `TlsSide` of a listener, or of the links and clients that connect to others.

    What it holds is replaced whole: a new connection has the old or the new material, never parts of both.
    """

    def __init__(
        self, tls: TlsConfig, *, is_server: bool, material: Material | None = None
    ) -> None:
        """Reads all files, unless `material` has been read from them. Raises CertificateProblem."""
        self._tls = tls
        self._is_server = is_server
        try:
            self._rules = rules_of(tls.ssl_principal_mapping_rules)
        except BadRule as error:
            raise CertificateProblem(f"ssl.principal.mapping.rules: {error}") from None
        self.prepare(read_material(tls) if material is None else material)()

    @property
    def is_server(self) -> bool:
        return self._is_server

    @property
    def tls(self) -> TlsConfig:
        """The TLS settings of this side."""
        return self._tls

    @property
    def material(self) -> Material:
        """Keys and certificates that new connections use."""
        return self._now[0]

    @property
    def trust(self) -> object:
        """CAs and revocation lists."""
        return self.material.roots, self.material.crls

    def prepare(self, material: Material) -> Callable[[], None]:
        """A call that makes new connections use `material`, and cannot fail. Raises CertificateProblem."""
        made = material, Contexts(self._tls, material, is_server=self._is_server)

        def use() -> None:
            self._now = made

        return use

    def tls_object(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, host: str | None
    ) -> ssl.SSLObject:
        """For one new connection; `host` is the name that was dialled. A server has the first bytes of it."""
        name = dialled_name(host) if host is not None else None
        try:
            return self._now[1].tls_object(incoming, outgoing, name)
        except ValueError as error:
            raise CertificateProblem(
                f"{host!r} is no host name that TLS can ask for: {error}"
            ) from None

    def identify(self, certificate: bytes | None) -> Identity:
        """The holder of this certificate. Raises CertificateProblem."""
        if certificate is None:
            return Identity(ANONYMOUS, math.inf, None)
        try:
            name, expires_at = subject_of(certificate), end_of(certificate)
        except ValueError as error:
            raise CertificateProblem(
                f"its certificate cannot be read: {error}", HandshakeOutcome.PRINCIPAL
            ) from None
        return Identity(USER + self._rules.user_of(name), expires_at, certificate)

    def explain(
        self, error: Exception, host: str | None, tls: ssl.SSLObject | None
    ) -> CertificateProblem:
        """The reason why a connection failed, in words that say what to do."""
        shown = presented_chain(tls)
        try:
            return Failure(error, self._tls, self.material, self._is_server, host, shown).explain()
        except Exception as odd:  # the other side may have shown what no library reads
            text = f"did not complete the TLS handshake: {error}; what it showed cannot be read: {odd!r}"
            return CertificateProblem(text)
