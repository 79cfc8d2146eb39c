"""The words for an address that cannot be listened on."""

from __future__ import annotations

import errno

from quorumd.server.net.listeners import listen_error


def test_a_link_local_address_without_its_interface_is_told_with_the_remedy() -> None:
    # As the kernel refuses it, for IPv6.
    error = OSError(errno.EINVAL, "error while attempting to bind: invalid argument")
    assert str(listen_error("listeners", "A://[fe80::1]:9093", error)) == (
        "listeners: cannot listen on A://[fe80::1]:9093: the kernel does not take that address: one that"
        " begins with fe80 needs its interface, such as [fe80::1%eth0]"
    )
