"""Lists of addresses as users write them."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from quorumd import QuorumAdmin, QuorumClient, sync
from quorumd.client.addresses import parse_addresses
from quorumd.raft.types import Address


def test_addresses_are_read_in_order_and_each_once() -> None:
    assert parse_addresses(" a:1, [::1]:9093 ,CONTROLLER://b:65535,a:1,") == (
        Address("a", 1),
        Address("::1", 9093),
        Address("b", 65535),
    )


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    assert [str(address) for address in parse_addresses("[::1]:9,h:7")] == ["[::1]:9", "h:7"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no address is given"),
        (" , ", "no address is given"),
        ("host", "'host' has no port: expected host:port, such as host:9093"),
        ("::1:9093", "an IPv6 address needs brackets"),
        ("a:1;b:2", "'a:1;b' is no host: expected host:port, or several separated by commas"),
        ("a:1 b:2", "'a:1 b' is no host"),
        ("10.0.0.1:1:2", "'10.0.0.1:1' is no host"),
        (":9093", "':9093' has no host"),
        ("a b:9093", "'a b:9093' has no host"),
        ("a:0", "'0' is no port"),
        ("a:65536", "'65536' is no port"),
        ("a:+1", "'+1' is no port"),
        ("a:٣", "is no port"),
    ],
)
def test_what_is_no_address_is_refused_with_the_part_that_is_wrong(
    text: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        parse_addresses(text)


@pytest.mark.parametrize(
    ("servers", "error", "complaint"),
    [
        ([], ValueError, "no address is given: expected host:port"),
        (["a:1"], TypeError, "'a:1' among the bootstrap servers is of type str: give one text"),
        ([("a", 1)], TypeError, "('a', 1) among the bootstrap servers is of type tuple"),
        (b"a:1", TypeError, "97 among the bootstrap servers is of type int"),
    ],
)
@pytest.mark.parametrize("client", [QuorumClient, QuorumAdmin, sync.QuorumClient])
def test_a_client_takes_addresses_only(
    client: type[Any], servers: Any, error: type[Exception], complaint: str
) -> None:
    threads = set(threading.enumerate())
    with pytest.raises(error, match=re.escape(complaint)):
        client(servers)
    assert set(threading.enumerate()) <= threads
