"""When what a side uses ends, as metrics and warnings have it."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from cryptography import x509

from quorumd.security.expiry import Expiry, expiries
from quorumd.security.material import Material
from tests.support.odd_certificates import DAY, HOUR, Authority, now

SECOND = timedelta(seconds=1)


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
        expiry("own", "CN=node", leaf.certificate),
        expiry("ca", "CN=between", between.certificate),
        expiry("ca", "CN=root", root.certificate),
        Expiry("crl", "CN=root", crl.next_update_utc.timestamp(), crl.last_update_utc.timestamp()),
    ]


def test_of_two_cas_of_one_name_the_one_counts_that_ends_first() -> None:
    """As during the exchange of a CA: two series with the same labels would be none for Prometheus."""
    new = Authority("root")
    old = new.issue("root", (), end=now() + DAY)
    for roots in ((old.certificate, new.certificate), (new.certificate, old.certificate)):
        found = expiries(Material(None, (), roots))
        assert found == [expiry("ca", "CN=root", old.certificate)]


def expiry(role: str, subject: str, certificate: x509.Certificate) -> Expiry:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return Expiry(role, subject, end.timestamp(), begin.timestamp())


@pytest.mark.parametrize(
    ("lifetime", "left", "is_soon"),
    [
        pytest.param(365 * DAY, 14 * DAY - SECOND, True, id="a-year"),
        pytest.param(365 * DAY, 14 * DAY, False, id="a-year-early"),
        pytest.param(DAY, 8 * HOUR - SECOND, True, id="a-day"),
        pytest.param(DAY, 8 * HOUR, False, id="a-day-early"),
        pytest.param(DAY, -HOUR, True, id="ended"),
        pytest.param(-DAY, -HOUR, True, id="never-began"),
    ],
)
def test_an_end_is_soon_within_two_weeks_or_a_third_of_the_lifetime(
    lifetime: timedelta, left: timedelta, is_soon: bool
) -> None:
    """Or else certificates that live for a day would be warned of for ever."""
    end_s = 2_000_000_000.0
    found = Expiry("own", "CN=node", end_s, end_s - lifetime.total_seconds())
    assert found.is_soon(end_s - left.total_seconds()) is is_soon


def test_a_list_without_an_end_never_ends_soon() -> None:
    assert not Expiry("crl", "CN=root", math.inf, 0.0).is_soon(1e12)
