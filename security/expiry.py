"""When certificates and revocation lists end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from cryptography import x509

from quorumd.security.distinguished_name import BadName, name_text
from quorumd.security.material import Material


class Expiry(NamedTuple):
    """The end of one certificate or list."""

    role: str
    """`own`: this side's certificate; `ca`: one that has signed others; `crl`: a revocation list."""
    subject: str
    """Of the certificate; of a list, its issuer."""
    at_s: float
    """Seconds since 1970: from then on what rests on it is refused. Infinite: it names no end."""


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
        yield Expiry(role, _text(certificate.subject), certificate.not_valid_after_utc.timestamp())
    for crl in material.crls:
        end = crl.next_update_utc
        yield Expiry("crl", _text(crl.issuer), math.inf if end is None else end.timestamp())


def _text(name: x509.Name) -> str:
    """As in principals."""
    try:
        return name_text(name.public_bytes())
    except BadName:
        return name.rfc4514_string()
