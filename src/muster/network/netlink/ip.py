"""IP addresses and CIDRs that were parsed lately: requests of one attachment name the same few again and again."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

_KEPT: Final = 1024

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@lru_cache(_KEPT)
def address_of(text: str) -> Address:
    """Return an address. Raises ValueError."""
    return ipaddress.ip_address(text)


@lru_cache(_KEPT)
def network_of(text: str) -> Network:
    """Return a CIDR. Raises ValueError, also if bits after the prefix are set."""
    return ipaddress.ip_network(text)
