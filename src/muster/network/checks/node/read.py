"""Reads a node's network: files of the kernel, and lists over rtnetlink. It needs no capability and changes nothing."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from muster.kube.smallfiles import names_in, number_of, text_of
from muster.network.checks.node.allowances import read_allowances
from muster.network.checks.node.evidence import Connections, Conntrack, NeighbourTable, NodeEvidence
from muster.network.netlink import address, link, neighbour, paths
from muster.network.netlink.socket import ROUTE, NetlinkSocket

CONNECTIONS_MAX: Final = 32
"""Destinations that are kept: those with the most connections."""
_SOCKETS_MAX: Final = 500_000
_KEYS_MAX: Final = 50_000
_STAT_BYTES_MAX: Final = 1 << 20
_ADDRESS: Final = r"([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4})"
_SOCKET: Final = re.compile(rf"\s*\d+: {_ADDRESS} {_ADDRESS} ([0-9A-F]{{2}})\b")
_LISTENS: Final = "0A"
_VERSIONS: Final = (4, 6)
_FAMILY: Final = {4: ("ipv4", "arp_cache"), 6: ("ipv6", "ndisc_cache")}


class NodePaths(msgspec.Struct, frozen=True):
    """Folders that are read.

    Attributes:
        net: network files of the host's namespace.
        sysctl: its settings.
    """

    net: Path = Path("/proc/net")
    sysctl: Path = Path("/proc/sys/net")

    @classmethod
    def below(cls, proc: Path) -> NodePaths:
        """Return the folders below a node's /proc. The caller is in the host's network namespace."""
        return cls(proc / "net", proc / "sys/net")

    def is_host(self) -> bool:
        """Return whether the caller is in the first network namespace: only there the kernel shows the thresholds."""
        return number_of(self.sysctl / "ipv4/neigh/default/gc_thresh1") is not None


@dataclass
class _Listed:
    """What the kernel lists over rtnetlink."""

    permanent: dict[int, int] = field(default_factory=dict)
    links: list[link.Link] = field(default_factory=list)
    addresses: list[address.LinkAddress] = field(default_factory=list)
    routes: list[paths.PathRoute] = field(default_factory=list)
    exceptions: list[paths.PathRoute] = field(default_factory=list)
    rules: int = 0
    unread: list[str] = field(default_factory=list)

    def read(self, netlink: NetlinkSocket) -> None:
        """Read all lists. One that the kernel refuses (no IPv6, an old kernel) does not end the others."""
        with self._noted():
            self.links = link.all_links(netlink)
        with self._noted():
            self.addresses = address.all_addresses(netlink)
        for version in _VERSIONS:
            with self._noted():
                self.permanent[version] = neighbour.count_permanent(netlink, version)
            with self._noted():
                self.routes += paths.routes(netlink, version)
            with self._noted():
                self.exceptions += paths.exceptions(netlink, version)
            with self._noted():
                self.rules += paths.policy_rules(netlink, version)

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.unread.append(str(error))


def read_node(where: NodePaths) -> NodeEvidence:
    """Read everything once; blocking. It takes a few milliseconds, and more with many connections."""
    found = _Listed()
    with NetlinkSocket(ROUTE, strict=True) as netlink:
        found.read(netlink)
    return NodeEvidence(
        conntrack=_conntrack(where),
        neighbours=tuple(
            table
            for version in _VERSIONS
            if (table := _table(where, version, found.permanent.get(version, 0))) is not None
        ),
        links=tuple(found.links),
        routes=tuple(found.routes),
        exceptions=tuple(found.exceptions),
        rules=found.rules,
        has_ipv6=any(_is_global_six(each.ip) for each in found.addresses),
        reverse_path=_reverse_path(where),
        counters=extended_counters(text_of(where.net / "netstat", _STAT_BYTES_MAX) or ""),
        ports=_ports(where),
        connections=_connections(where),
        bridge_nf=number_of(where.sysctl / "bridge/bridge-nf-call-iptables"),
        allowances=read_allowances(each.name for each in found.links if each.up and not each.kind),
        unread=tuple(found.unread),
    )


def per_cpu(text: str) -> dict[str, int]:
    """Return the sums over all CPUs of a file of /proc/net/stat: a line of names, then one line of hex for each CPU.

    Each line has the same `entries`: the number of the whole table.
    """
    lines = text.splitlines()
    names = lines[0].split() if lines else []
    totals = dict.fromkeys(names, 0)
    for line in lines[1:]:
        for name, value in zip(names, line.split(), strict=False):
            try:
                number = int(value, 16)
            except ValueError:
                continue
            totals[name] = number if name == "entries" else totals[name] + number
    return totals


def extended_counters(text: str) -> dict[str, int]:
    """Return the counters TcpExt of /proc/net/netstat: a line of names, then a line of numbers."""
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("TcpExt:")]
    if len(lines) < 2:
        return {}
    return {name: int(value) for name, value in zip(lines[0], lines[1], strict=False) if value.isdigit()}


def connections(lines: Iterable[str]) -> Counter[tuple[str, str, int]]:
    """Return the number of outgoing connections by (local address, remote address, remote port).

    A connection to a port on which the host listens came from outside, and needs no local port. The kernel lists
    listening sockets first.

    Args:
        lines: of /proc/net/tcp or tcp6. Lines and destinations beyond a limit are left out.
    """
    found: Counter[tuple[str, str, int]] = Counter()
    served: set[str] = set()
    for line in itertools.islice(lines, _SOCKETS_MAX):
        match = _SOCKET.match(line)
        if match is None:
            continue
        local, local_port, remote, port, state = match.groups()
        if state == _LISTENS:
            served.add(local_port)
        elif local_port not in served and ((key := (local, remote, int(port, 16))) in found or len(found) < _KEYS_MAX):
            found[key] += 1
    return found


def _connections(where: NodePaths) -> tuple[Connections, ...]:
    found: Counter[tuple[str, str, int]] = Counter()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), (where.net / name).open(errors="replace") as file:
            found += connections(file)  # line by line: a busy node has tens of megabytes
    return tuple(
        Connections(_address(local), _address(remote), port, count)
        for (local, remote, port), count in found.most_common(CONNECTIONS_MAX)
    )


def _address(text: str) -> str:
    """Return an address of /proc/net/tcp: words of 32 bits in the byte order of the machine, which is little-endian."""
    octets = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    found = ipaddress.ip_address(octets)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def _conntrack(where: NodePaths) -> Conntrack | None:
    entries = number_of(where.sysctl / "netfilter/nf_conntrack_count")
    limit = number_of(where.sysctl / "netfilter/nf_conntrack_max")
    if entries is None or not limit:
        return None
    return Conntrack(entries, limit, per_cpu(text_of(where.net / "stat/nf_conntrack", _STAT_BYTES_MAX) or ""))


def _table(where: NodePaths, version: int, permanent: int) -> NeighbourTable | None:
    family, stat = _FAMILY[version]
    counters = per_cpu(text_of(where.net / "stat" / stat, _STAT_BYTES_MAX) or "")
    values = [number_of(where.sysctl / family / f"neigh/default/gc_thresh{number}") for number in (1, 2, 3)]
    first, second, third = values
    if not counters or first is None or second is None or third is None:
        return None
    return NeighbourTable(version, counters.get("entries", 0), permanent, (first, second, third), counters)


def _reverse_path(where: NodePaths) -> Mapping[str, int]:
    folder = where.sysctl / "ipv4/conf"
    values = {name: number_of(folder / name / "rp_filter") for name in names_in(folder)}
    return {name: value for name, value in values.items() if value is not None}


def _ports(where: NodePaths) -> int:
    """Return the number of local ports without those that are reserved."""
    ends = (text_of(where.sysctl / "ipv4/ip_local_port_range") or "").split()
    if len(ends) != 2 or not all(each.isdigit() for each in ends):
        return 0
    first, last = map(int, ends)
    reserved = 0
    for part in filter(None, (text_of(where.sysctl / "ipv4/ip_local_reserved_ports") or "").split(",")):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            reserved += max(0, min(int(high or low), last) - max(int(low), first) + 1)
    return max(0, last - first + 1 - reserved)


def _is_global_six(ip: str) -> bool:
    found = ipaddress.ip_address(ip)
    return found.version == 6 and not (found.is_link_local or found.is_loopback)
