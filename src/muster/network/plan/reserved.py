"""Ranges with a special meaning, which clusters cannot use, or should not.

Sources: RFC 6890 and its IANA registries; RFC 1112 (class E); Docker's default bridge; RFC 6598 (100.64.0.0/10);
Microsoft, "Azure Virtual Network FAQ" and "AKS networking prerequisites"; AWS, "VPC CIDR blocks".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from muster.network.plan.range import Range, parse_range


class Reserved(NamedTuple):
    """A range with a special meaning.

    Attributes:
        usable: a plan may use it if a supernet names it. It is then a warning.
        error: packets never arrive.
        provider: only on this provider; "" for all.
        use: only for ranges of this use; "" for all.
    """

    range: Range
    what: str
    usable: bool
    error: bool
    provider: str = ""
    use: str = ""


def _never(cidr: str, what: str, provider: str = "") -> Reserved:
    return Reserved(parse_range(cidr), what, usable=False, error=True, provider=provider)


def _risky(cidr: str, what: str, provider: str = "", use: str = "", *, usable: bool = False) -> Reserved:
    return Reserved(parse_range(cidr), what, usable, error=False, provider=provider, use=use)


RESERVED: Final = (
    _never("0.0.0.0/8", "this network (RFC 791)"),
    _never("127.0.0.0/8", "loopback"),
    _never("169.254.0.0/16", "link local: metadata services and node-local DNS"),
    _never("224.0.0.0/4", "multicast"),
    _never("168.63.129.16/32", "Azure's platform address", "azure"),
    _never("::1/128", "loopback"),
    _never("::ffff:0:0/96", "IPv4-mapped addresses"),
    _never("fe80::/10", "link local"),
    _never("ff00::/8", "multicast"),
    _risky("172.17.0.0/16", "docker's default bridge, on nodes and on laptops of researchers"),
    _risky("192.0.2.0/24", "documentation; AKS refuses it", "azure"),
    _risky("198.51.100.0/24", "documentation (RFC 5737)", usable=True),
    _risky("203.0.113.0/24", "documentation (RFC 5737)", usable=True),
    _risky("2001:db8::/32", "documentation (RFC 3849); networks often drop it", usable=True),
    _risky("172.30.0.0/16", "AKS refuses it for Services", "azure", "services"),
    _risky("172.31.0.0/16", "AKS refuses it for Services", "azure", "services"),
    _risky("100.64.0.0/10", "shared address space: carriers, Tailscale and cloud services use it", usable=True),
    _risky("240.0.0.0/4", "class E: Windows, many routers and some clouds drop it", usable=True),
)

PRIVATE: Final = tuple(map(parse_range, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
"""Space that the Internet does not route (RFC 1918, RFC 4193)."""
