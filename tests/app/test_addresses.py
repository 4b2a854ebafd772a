"""Addresses that look public and are not."""

from __future__ import annotations

import pytest

from app.addresses import is_global


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "::ffff:93.184.216.34"])
def test_public(address: str) -> None:
    assert is_global(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",  # carrier-grade NAT
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",  # IPv4-compatible
        "64:ff9b::7f00:1",  # NAT64 of 127.0.0.1
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a00:1",
        "2002:7f00:1::",  # 6to4 of 127.0.0.1
        "2002:a9fe:a9fe::1",
        "2001:0:4136:e378:8000:63bf:f5ff:fffe",  # Teredo client 10.0.0.1
        "2606:2800:220:1:0:5efe:a00:1",  # ISATAP of 10.0.0.1
    ],
)
def test_not_public(address: str) -> None:
    assert not is_global(address)


def test_no_address() -> None:
    with pytest.raises(ValueError, match="does not appear"):
        is_global("localhost")
