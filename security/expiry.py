"""When certificates and revocation lists end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from cryptography import x509

from quorumd.security.distinguished_name import BadName, name_text
from quorumd.security.material import Material

SOON_S: Final = 14 * 86_400.0
"""Rest of its time in which an item needs care, unless a third of its lifetime is shorter."""


class Expiry(NamedTuple):
    """The end of one certificate or list."""

    role: str
    """`own`: this side's certificate; `ca`: one that has signed others; `crl`: a revocation list."""
    subject: str
    """Of the certificate; of a list, its issuer."""
    at_s: float
    """Seconds since 1970: from then on what rests on it is refused. Infinite: it names no end."""
    begun_s: float
    """Seconds since 1970: from then on it counts."""

    def is_soon(self, now_s: float) -> bool:
        """True if it should have been renewed by now: certificates may be made to live for a day."""
        return self.at_s - now_s < min(SOON_S, max(self.at_s - self.begun_s, 0.0) / 3)


def expiries(material: Material) -> list[Expiry]:
    """The own certificate first. Of several of the same subject the one that ends first is given."""
    found: dict[tuple[str, str], Expiry] = {}
    for each in _all(material):
        known = found.setdefault(each[:2], each)
        if each.at_s < known.at_s:
            found[each[:2]] = each
    return list(found.values())


def _all(material: Material) -> Iterator[Expiry]:
    for number, certificate in enumerate((*material.chain, *material.roots)):
        role = "own" if material.chain and not number else "ca"
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        yield Expiry(role, _text(certificate.subject), end.timestamp(), begin.timestamp())
    for crl in material.crls:
        next_s = math.inf if crl.next_update_utc is None else crl.next_update_utc.timestamp()
        yield Expiry("crl", _text(crl.issuer), next_s, crl.last_update_utc.timestamp())


def _text(name: x509.Name) -> str:
    """As in principals."""
    try:
        return name_text(name.public_bytes())
    except BadName:
        return name.rfc4514_string()
