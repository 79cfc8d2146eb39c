"""Faults of one side's keys and certificates, all at once, before they count.

The same checks are made at start, when files have changed, and by `quorumd certs check`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from quorumd.config.tls import ClientAuth, TlsConfig
from quorumd.security.contexts import Contexts, make_context, spoken_versions, suite_problem
from quorumd.security.errors import CertificateProblem, HandshakeOutcome
from quorumd.security.handshake_failures import (
    Failure,
    crl_problem,
    described,
    key_place,
    presented_chain,
    trust_place,
    validity_problem,
)
from quorumd.security.host_names import names_and_not, unnamed_hosts
from quorumd.security.mapping_rules import BadRule, rules_of
from quorumd.security.material import (
    CRL,
    KEYSTORE,
    TRUSTSTORE,
    Material,
    Readable,
    encoded_key,
    has_extension,
    has_signed,
    is_issued_by,
    read_material,
    readable_material,
)

KeyProblem = tuple[str, str]
"""A key of the configuration, and what is wrong."""
_READABLE_BY_OTHERS: Final = 0o004
_TURNS_MAX: Final = 8
_OF_TIME: Final = {
    HandshakeOutcome.EXPIRED: "have it issued anew",
    HandshakeOutcome.NOT_YET_VALID: "set the clock of this host, or of the CA that issued it, or wait",
}
_OF_TRUSTED_TIME: Final = {
    HandshakeOutcome.EXPIRED: "remove it",
    HandshakeOutcome.NOT_YET_VALID: "set the clock of this host, or wait",
}


def problems_of(
    tls: TlsConfig,
    *,
    listener: str,
    hosts: Sequence[str],
    is_server: bool,
    is_peers: bool,
    has_node_stores: bool = False,
    material: Material | None = None,
    unread: Set[str] = frozenset(),
) -> list[KeyProblem]:
    """Configuration key and text of all that would be refused; empty if these can be used.

    `listener` names the side in what is said, `hosts` are the host names and IP addresses under which others
    dial it, `is_peers`: other nodes are at the other end, `has_node_stores`: they may be tomorrow. Reads the
    files, unless `material` has been read from them. What depends on a key that is `unread`, which was set
    and has no value, or on a store that cannot be read, is not judged.
    """
    problems: list[KeyProblem] = []
    is_known = unread.isdisjoint(("ssl.cipher.suites", "ssl.enabled.protocols"))
    if is_known and (text := suite_problem(tls)):
        problems.append(("ssl.cipher.suites", text))
    try:
        rules_of(tls.ssl_principal_mapping_rules)
    except BadRule as error:
        problems.append(("ssl.principal.mapping.rules", str(error)))
    found = readable_material(tls, unread) if material is None else Readable(material)
    problems += found.problems
    checks = _Checks(
        tls,
        found.material,
        listener,
        hosts,
        is_server,
        is_peers,
        is_peers or has_node_stores,
        found.unknown | unread,
    )
    problems += checks.stores()
    problems += checks.own_chain()
    problems += checks.revocation_lists()
    return problems if problems or checks.unknown else list(checks.by_openssl())


def warnings_of(tls: TlsConfig, material: Material | None = None) -> list[KeyProblem]:
    """Configuration key and text of what is dangerous and refused nowhere. Reads files as `problems_of`."""
    found: list[KeyProblem] = []
    path = tls.ssl_keystore_location
    try:
        if path is not None and path.stat().st_mode & _READABLE_BY_OTHERS:
            text = f"everybody on this host may read the private key in {path}: chmod 600 {path}"
            found.append((KEYSTORE, text))
        held = read_material(tls) if material is None else material
    except (OSError, CertificateProblem):
        return found
    for root in held.roots:
        if problem := validity_problem(root):
            text = f"{trust_place(tls)} holds {described(root)}, which {problem[1]}"
            found.append((TRUSTSTORE, f"{text}: {_OF_TRUSTED_TIME[problem[0]]}"))
    return found


@dataclass(frozen=True, slots=True)
class _Checks:
    tls: TlsConfig
    material: Material
    listener: str
    hosts: Sequence[str]
    is_server: bool
    is_peers: bool
    is_trusted_by_nodes: bool
    """Other nodes, with the same truststore, have to take this side's certificate."""
    unknown: Set[str]
    """Keys whose values, and stores whose contents, are not known: nothing is said of them."""

    def stores(self) -> Iterator[KeyProblem]:
        """Check that everything is there that has to be."""
        tls = self.tls
        needs_chain = KEYSTORE not in self.unknown and (self.is_server or self.is_peers)
        if needs_chain and not self.material.chain:
            text = (
                f"is missing: {self.listener} needs a private key and a certificate (PEM, in one file); "
                "`quorumd certs node` makes them for a test or a small site"
            )
            yield KEYSTORE, text
        is_told = self.is_server and "ssl.client.auth" not in self.unknown
        if is_told and self.is_peers and tls.ssl_client_auth is not ClientAuth.REQUIRED:
            text = (
                f"is {tls.ssl_client_auth} for {self.listener}, where nodes reach each other: set it to "
                "required"
            )
            yield "ssl.client.auth", text
        asks = self.is_server and tls.ssl_client_auth is not ClientAuth.NONE
        needs_roots = TRUSTSTORE not in self.unknown and (asks or self.is_peers)
        if needs_roots and not self.material.roots:
            text = (
                f"is missing: {self.listener} asks for certificates, and no CA is trusted to have "
                "made them"
            )
            yield TRUSTSTORE, text

    def own_chain(self) -> Iterator[KeyProblem]:
        """Check that others take this side's certificate."""
        chain = self.material.chain
        if not chain:
            return
        place = key_place(self.tls)
        for certificate in chain:
            if problem := validity_problem(certificate):
                text = f"the certificate {described(certificate)} in {place} {problem[1]}"
                yield KEYSTORE, f"{text}: {_OF_TIME[problem[0]]}"
        if self.is_trusted_by_nodes and self.material.roots and not self._is_trusted():
            text = (
                f"{trust_place(self.tls)} does not hold the CA of this node's certificate "
                f"({described(chain[-1])}): nodes with this file would refuse each other. Add that CA, or "
                "take a certificate of one that is there"
            )
            yield TRUSTSTORE, text
        yield from self._hosts()
        yield from self._purposes()

    def _is_trusted(self) -> bool:
        roots = self.material.roots
        return any(
            each in roots or any(is_issued_by(each, root) for root in roots)
            for each in self.material.chain
        )

    def _hosts(self) -> Iterator[KeyProblem]:
        if not self.is_server:
            return
        own = self.material.chain[0]
        if missing := unnamed_hosts(own, self.hosts):
            text = (
                f"the certificate in {key_place(self.tls)} {names_and_not(own, missing)}, where others reach "
                f"{self.listener}: have it issued with these as subject alternative names (the CN does not "
                "count)"
            )
            yield KEYSTORE, text

    def _purposes(self) -> Iterator[KeyProblem]:
        extensions = self.material.chain[0].extensions
        needed = {}
        if self.is_server or self.is_peers:
            needed[ExtendedKeyUsageOID.SERVER_AUTH] = "serverAuth"
        if not self.is_server or self.is_peers:
            needed[ExtendedKeyUsageOID.CLIENT_AUTH] = "clientAuth"
        try:
            held = set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        except x509.ExtensionNotFound:
            held = set(needed)
        if missing := [name for purpose, name in needed.items() if purpose not in held]:
            text = (
                f"the certificate in {key_place(self.tls)} is not made for {' and '.join(missing)}, "
                f"which {self.listener} needs: have it issued with the extended key usage "
                f"{', '.join(needed.values())}"
            )
            yield KEYSTORE, text
        try:
            usage = extensions.get_extension_for_class(x509.KeyUsage).value
        except x509.ExtensionNotFound:
            return
        if not usage.digital_signature:
            text = (
                f"the certificate in {key_place(self.tls)} is not made for signatures, which TLS needs: "
                "have it issued with the key usage digitalSignature"
            )
            yield KEYSTORE, text

    def revocation_lists(self) -> Iterator[KeyProblem]:
        """Check that each trusted CA has a list that counts."""
        crls, path = self.material.crls, self.tls.ssl_crl_location
        if not crls:
            return
        roots = self.material.roots
        for root in roots:
            if not any(is_issued_by(root, each) for each in roots):
                held = f"{trust_place(self.tls)} holds {described(root)}, which is no root"
                remedy = "revocation is looked up along the whole chain, so add its root"
                yield TRUSTSTORE, f"{held}: {remedy}"
        for crl in crls:
            if problem := crl_problem(crl):
                yield CRL, f"in {path} {problem}, so that nobody would be let in: fetch a new one"
            if has_extension(crl, x509.DeltaCRLIndicator):
                issuer = crl.issuer.rfc4514_string()
                held = f"{path} holds a delta of the revocation list of {issuer}"
                yield (
                    CRL,
                    f"{held}, and deltas are not applied: put the CA's newest whole list there",
                )
        whole = [crl for crl in crls if not has_extension(crl, x509.DeltaCRLIndicator)]
        authorities = dict.fromkeys((*self.material.chain[1:], *self.material.roots))
        yield from self._mistakable(whole, authorities)
        # Which lists are needed is not known before all CAs are.
        are_known = self.unknown.isdisjoint((KEYSTORE, TRUSTSTORE))
        for authority in authorities if are_known else ():
            lists = [crl for crl in whole if crl.issuer == authority.subject]
            signed = [crl for crl in lists if has_signed(authority, crl)]
            has_cas = any(it != authority and is_issued_by(it, authority) for it in authorities)
            if not any(_is_about(crl, has_cas) for crl in signed):
                wrong = "one that it has signed" if lists else "one"
                if signed:
                    wrong = (
                        f"one about the certificates of {'CAs' if has_cas else 'nodes and clients'}"
                    )
                text = (
                    f"{path} has no revocation list of {authority.subject.rfc4514_string()}, so that "
                    f"all that it has issued would be refused: append {wrong}, or remove that CA from the "
                    "truststore"
                )
                yield CRL, text
        for certificate in self.material.chain:
            for crl in crls:
                is_listed = crl.get_revoked_certificate_by_serial_number(certificate.serial_number)
                if crl.issuer == certificate.issuer and is_listed:
                    own = f"the certificate {described(certificate)} in {key_place(self.tls)}"
                    yield KEYSTORE, f"{own} is revoked by {path}"

    def _mistakable(
        self,
        crls: Sequence[x509.CertificateRevocationList],
        authorities: Iterable[x509.Certificate],
    ) -> Iterator[KeyProblem]:
        """Lists of several CAs of one name, which OpenSSL would take for one another's."""
        of_name: dict[x509.Name, set[bytes]] = {}
        for authority in authorities:
            if any(has_signed(authority, crl) for crl in crls):
                keys = of_name.setdefault(authority.subject, set())
                keys.add(encoded_key(authority.public_key()))
        for name, keys in of_name.items():
            if len(keys) > 1 and not all(
                has_extension(crl, x509.AuthorityKeyIdentifier)
                for crl in crls
                if crl.issuer == name
            ):
                text = (
                    f"{self.tls.ssl_crl_location} holds lists of {len(keys)} CAs that are all called "
                    f"{name.rfc4514_string()}, and not all say by authority key identifier whose they are: "
                    "have them made with one (`openssl ca`: crl_extensions, authorityKeyIdentifier=keyid)"
                )
                yield CRL, text

    def by_openssl(self) -> Iterator[KeyProblem]:
        """Check what else OpenSSL refuses: a server has a handshake with itself, or with a stranger."""
        try:
            Contexts(self.tls, self.material, is_server=self.is_server)
            if self.is_peers:
                self._shake_hands(self.material, ClientAuth.REQUIRED)
            elif self.is_server:
                stranger = Material(None, (), roots=self.material.chain)
                self._shake_hands(stranger, ClientAuth.NONE)
        except CertificateProblem as error:
            yield KEYSTORE, f"{key_place(self.tls)}: {error}"

    def _shake_hands(self, client: Material, client_auth: ClientAuth) -> None:
        """Raises CertificateProblem."""
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends: list[ssl.SSLObject] = []
        for is_server in (True, False):
            tls = replace(
                self.tls,
                ssl_client_auth=client_auth,
                ssl_endpoint_identification_algorithm="",
            )
            material = self.material if is_server else client
            context = make_context(
                tls, material, is_server=is_server, versions=spoken_versions(tls)
            )
            incoming, outgoing = (to_server, to_client) if is_server else (to_client, to_server)
            ends.append(context.wrap_bio(incoming, outgoing, server_side=is_server))
        for turn in range(_TURNS_MAX):
            is_server = bool(turn % 2)
            end = ends[0 if is_server else 1]
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                shown = presented_chain(end) or self.material.chain
                raise Failure(
                    error, self.tls, self.material, is_server, None, shown
                ).explain() from None


def _is_about(crl: x509.CertificateRevocationList, has_cas: bool) -> bool:
    """True if OpenSSL looks up certificates of CAs in it, or else those of nodes and clients."""
    try:
        scope = crl.extensions.get_extension_for_class(x509.IssuingDistributionPoint).value
    except x509.ExtensionNotFound:
        return True
    is_other = scope.only_contains_user_certs if has_cas else scope.only_contains_ca_certs
    is_partial = scope.indirect_crl or scope.only_some_reasons is not None
    return not (is_other or is_partial or scope.only_contains_attribute_certs)
