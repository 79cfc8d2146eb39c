"""When what a side uses ends, as metrics and warnings have it."""

from __future__ import annotations

from cryptography import x509

from quorumd.security.expiry import Expiry, expiries
from quorumd.security.material import Material
from tests.support.odd_certificates import DAY, Authority, now


def test_own_certificate_cas_and_lists_are_told_with_their_ends() -> None:
    root = Authority("root")
    between = Authority("between", above=root)
    leaf = between.issue("node")
    crl = x509.load_pem_x509_crl(root.crl())
    found = expiries(
        Material(leaf.key, (leaf.certificate, between.certificate), (root.certificate,), (crl,))
    )
    assert crl.next_update_utc is not None
    assert found == [
        Expiry("own", "CN=node", leaf.certificate.not_valid_after_utc.timestamp()),
        Expiry("ca", "CN=between", between.certificate.not_valid_after_utc.timestamp()),
        Expiry("ca", "CN=root", root.certificate.not_valid_after_utc.timestamp()),
        Expiry("crl", "CN=root", crl.next_update_utc.timestamp()),
    ]


def test_of_two_cas_of_one_name_the_one_counts_that_ends_first() -> None:
    """As during the exchange of a CA: two series with the same labels would be none for Prometheus."""
    new = Authority("root")
    old = new.issue("root", (), end=now() + DAY)
    for roots in ((old.certificate, new.certificate), (new.certificate, old.certificate)):
        found = expiries(Material(None, (), roots))
        assert found == [Expiry("ca", "CN=root", old.certificate.not_valid_after_utc.timestamp())]
