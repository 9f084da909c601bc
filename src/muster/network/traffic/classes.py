"""Classes of peers: which addresses are internal, internet, or in a named list of prefixes."""

from __future__ import annotations

import bisect
import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

INTERNAL: Final = "internal"
INTERNET: Final = "internet"
CLASSES_MAX: Final = 16
"""Each class has counters of its own for every pod."""

PRIVATE: Final = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
"""Default of the internal prefixes: RFC 1918, RFC 6598, RFC 4193."""
NEVER_ROUTED: Final = (
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/4",
    "255.255.255.255/32",
    "::/127",
    "fe80::/10",
    "ff00::/8",
)
"""Loopback, link-local (so are metadata and DNS of clouds) and multicast never cross an uplink: always internal."""

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_RESERVED: Final = frozenset({"inner", "outer", "ipv6", "local", "rdma"})
_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ClassError(ValueError):
    """The classes are not usable. The text says which entry, and what to change."""


class Range(NamedTuple):
    """Addresses from `first` to `last`, both included, as numbers, and their class."""

    first: int
    last: int
    cls: str

    def networks(self, version: int) -> Iterator[Network]:
        """Yield the fewest prefixes that hold these addresses and no others."""
        if version == 4:
            yield from ipaddress.summarize_address_range(
                ipaddress.IPv4Address(self.first), ipaddress.IPv4Address(self.last)
            )
        else:
            yield from ipaddress.summarize_address_range(
                ipaddress.IPv6Address(self.first), ipaddress.IPv6Address(self.last)
            )


class Classes:
    """Maps an address to its class by the longest prefix. Without a prefix it is `internet`.

    Args:
        internal: prefixes of the class `internal`.
        lists: further classes by name, a DNS label of at most 32 characters, with their prefixes, e.g. those of a
            provider's object store, which may not cross the uplink.

    Raises:
        ClassError: a name or prefix is invalid, a prefix is in two classes, or there are too many classes.
    """

    def __init__(self, internal: Sequence[str] = PRIVATE, lists: Mapping[str, Sequence[str]] | None = None) -> None:
        lists = lists or {}
        for name in lists:
            if not _LABEL.fullmatch(name) or name in _RESERVED or name in (INTERNAL, INTERNET):
                raise ClassError(
                    f"class {name!r}: use a DNS label of at most 32 characters"
                    f" other than {', '.join(sorted({INTERNAL, INTERNET, *_RESERVED}))}"
                )
        self.names: tuple[str, ...] = (INTERNAL, *sorted(lists), INTERNET)
        if len(self.names) > CLASSES_MAX:
            raise ClassError(f"{len(self.names)} classes: at most {CLASSES_MAX} are supported; join some lists")
        classes: dict[Network, str] = {}
        for name, prefixes in ((INTERNAL, internal), *sorted(lists.items())):
            for prefix in prefixes:
                network = _parsed(prefix, name)
                other = classes.setdefault(network, name)
                if other != name:
                    raise ClassError(f"prefix {prefix} is in {other} and in {name}: remove it from one of them")
        for prefix in NEVER_ROUTED:
            classes.setdefault(ipaddress.ip_network(prefix), INTERNAL)
        self._ranges = {version: tuple(_flat(classes, version)) for version in (4, 6)}
        self._firsts = {version: [each.first for each in ranges] for version, ranges in self._ranges.items()}

    def ranges(self, version: int) -> tuple[Range, ...]:
        """Return disjoint ranges in ascending order, of all classes but `internet`. `version` is 4 or 6."""
        return self._ranges[version]

    def of(self, address: str) -> str:
        """Return the class of an address. An IPv4 address in an IPv6 one (::ffff:0:0/96) counts as IPv4."""
        parsed = ipaddress.ip_address(address)
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        at = bisect.bisect_right(self._firsts[parsed.version], int(parsed)) - 1
        if at >= 0:
            found = self._ranges[parsed.version][at]
            if int(parsed) <= found.last:
                return found.cls
        return INTERNET


def _parsed(prefix: str, name: str) -> Network:
    try:
        network = ipaddress.ip_network(prefix)
    except ValueError as error:
        raise ClassError(f"class {name}: prefix {prefix!r}: {error}; write it as 10.0.0.0/8 or fd00::/8") from None
    if network.version == 6 and network.subnet_of(_MAPPED):
        raise ClassError(f"class {name}: prefix {prefix} is IPv4 in IPv6, which no packet has; write it as 10.0.0.0/8")
    return network


def _flat(classes: Mapping[Network, str], version: int) -> list[Range]:
    """Return disjoint ranges: inside a prefix, longer ones win. Neighbours of one class are joined."""
    networks = sorted(
        (network for network in classes if network.version == version),
        key=lambda network: (int(network.network_address), network.prefixlen),
    )
    flat: list[Range] = []
    open_: list[Network] = []

    def emit(first: int, last: int, cls: str) -> None:
        if first > last:
            return
        if flat and flat[-1].cls == cls and flat[-1].last + 1 == first:
            flat[-1] = Range(flat[-1].first, last, cls)
        else:
            flat.append(Range(first, last, cls))

    at = 0
    for network in networks:
        first = int(network.network_address)
        while open_ and int(open_[-1].broadcast_address) < first:
            last = int(open_[-1].broadcast_address)
            emit(at, last, classes[open_.pop()])
            at = max(at, last + 1)
        if open_:
            emit(at, first - 1, classes[open_[-1]])
        at = first
        open_.append(network)
    while open_:
        last = int(open_[-1].broadcast_address)
        emit(at, last, classes[open_.pop()])
        at = max(at, last + 1)
    return flat
