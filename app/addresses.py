"""Which IP addresses a fetch may reach: global ones only, also when one address is wrapped in another.

Addresses that carry an IPv4 address inside (mapped, compatible, 6to4, Teredo, NAT64, ISATAP) are judged by what they carry as well: a
translator on the way would deliver the packets there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
COMPATIBLE = ipaddress.IPv6Network("::/96")
ISATAP = (0x00005EFE, 0x02005EFE)


def is_global(text: str) -> bool:
    """True when the address, and every IPv4 address inside it, is on the public internet. ValueError when it is no address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return all(one.is_global and not one.is_multicast for one in _unwrapped(address))


def _unwrapped(address: Address) -> Iterator[Address]:
    """The address and the IPv4 addresses it carries; an IPv4-mapped one is only what it carries."""
    if isinstance(address, ipaddress.IPv4Address):
        yield address
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
        return
    yield address
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    number = int(address)
    last = ipaddress.IPv4Address(number & 0xFFFFFFFF)
    if address in COMPATIBLE or any(address in network for network in NAT64) or number >> 32 & 0xFFFFFFFF in ISATAP:
        yield last
