"""The table of nftables that counts traffic, as text for the program `nft`.

Each kind of subject, direction and class has a set whose elements hold a counter. The peer's address selects the
class: by its first byte where no range has that, else by the ranges. Then the subject is looked for in the sets of
the class. The cost of a packet does not depend on the number of pods.

Three hooks see each packet once, with the pod's address and the real peer:

- `prerouting` after destination NAT: what enters. A reply to a masqueraded pod has the pod's address again.
- `forward`: what leaves and was forwarded. The endpoint has replaced the Service's address, and SNAT comes later.
- `output`: what leaves from a local socket. In `postrouting` nftables cannot look for the socket's cgroup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from muster.api.socket_marks import MASK
from muster.network.traffic.backend import DIRECTIONS, HOST, INNER, IPV6, OUTER, TUNNEL, Direction
from muster.network.traffic.classes import INTERNAL, INTERNET, Classes, Network, Range
from muster.network.traffic.interfaces import Interfaces

TABLE: Final = "muster_traffic"
ADDRESS4, ADDRESS6, MARK, REST = "v4", "v6", "mark", "rest"
LOCAL4, LOCAL6 = "local4", "local6"

_AFTER_DNAT: Final = -90
_AFTER_FILTERS: Final = 300
_NETWORKS_MAX: Final = 32
"""Up to so many prefixes of a family are compared one after the other: a lookup in a map costs as much as 30."""
_PATHS: Final[tuple[tuple[str, str, Direction], ...]] = (
    ("in", "iif", "in"),
    ("forward", "oif", "out"),
    ("output", "oif", "out"),
)
_HOOKS: Final = {"in": "prerouting", "forward": "forward", "output": "output"}
_ENVELOPES: Final = "{ 4, 41, 47, 50 }"  # IPIP, SIT, GRE, ESP
_TYPES: Final = {ADDRESS4: "ipv4_addr", ADDRESS6: "ipv6_addr", MARK: "mark", REST: "nf_proto"}
_CGROUP: Final = "cgroup"
_END: Final[dict[Direction, tuple[str, str]]] = {"in": ("daddr", "saddr"), "out": ("saddr", "daddr")}
"""The fields of the pod's and of the peer's address."""
_PEER_BITS: Final[dict[tuple[int, Direction], int]] = {(4, "in"): 96, (4, "out"): 128, (6, "in"): 64, (6, "out"): 192}
"""Where the peer's address begins in the IP header."""


def cgroup_kind(level: int) -> str:
    """Return the kind of subjects that are control groups this many levels below the root."""
    return f"{_CGROUP}{level}"


def cgroup_level(kind: str) -> int:
    """Return the level of a kind of control groups; 0 for another kind."""
    level = kind.removeprefix(_CGROUP)
    return int(level) if kind.startswith(_CGROUP) and level.isdigit() else 0


def set_name(kind: str, direction: str, cls: str) -> str:
    """Return the name of the set with these counters."""
    return f"{kind}_{direction}_{cls}"


def parse_set_name(name: str) -> tuple[str, Direction, str] | None:
    """Return (kind, direction, class) of a set with counters; None for another set."""
    kind, _, rest = name.partition("_")
    for direction in DIRECTIONS:
        if rest.startswith(f"{direction}_") and (kind in _TYPES or cgroup_level(kind)):
            return kind, direction, rest[len(direction) + 1 :]
    return None


def sets(classes: Classes, levels: Iterable[int]) -> str:
    """Return the commands that create what is missing of the table and its sets. Counters stay as they are."""
    types = {**_TYPES, **{cgroup_kind(level): "cgroupsv2" for level in levels}}
    lines = [
        f"add table inet {TABLE}",
        f"add set inet {TABLE} {LOCAL4} {{ type ipv4_addr; }}",
        f"add set inet {TABLE} {LOCAL6} {{ type ipv6_addr; }}",
    ]
    for direction in DIRECTIONS:
        for cls in classes.names:
            lines += [
                f"add set inet {TABLE} {set_name(kind, direction, cls)} {{ type {type_}; counter; }}"
                for kind, type_ in types.items()
            ]
            lines += _rest(direction, cls, HOST)
        for cls in (INNER, OUTER, IPV6):
            lines.append(f"add set inet {TABLE} {set_name(REST, direction, cls)} {{ type nf_proto; counter; }}")
            lines += _rest(direction, cls, TUNNEL)
    return "\n".join(lines) + "\n"


def _rest(direction: str, cls: str, subject: str) -> list[str]:
    return [
        f'add element inet {TABLE} {set_name(REST, direction, cls)} {{ {family} comment "{subject}" }}'
        for family in ("ipv4", "ipv6")
    ]


def rules(classes: Classes, interfaces: Interfaces, levels: Sequence[int], *, marks: bool) -> str:
    """Return the commands that replace all chains of the table in one transaction.

    Args:
        classes: of peers.
        interfaces: those that count. All exist: `nft` replaces names by numbers, which the kernel compares faster.
        levels: of control groups that are subjects. Each costs a lookup for packets of local sockets.
        marks: whether marks of sockets are subjects.
    """
    lines = [f"flush table inet {TABLE}"]
    chains: dict[str, list[str]] = {}
    for path, link, direction in _PATHS:
        chains.update(_entries(path, link, direction, interfaces))
        for version in (4, 6):
            chosen, map_ = _classes(classes, path, direction, version)
            chains.update(chosen)
            lines += map_
        for cls in classes.names:
            chains[f"{path}_{cls}"] = _subjects(path, direction, cls, levels, marks)
    hooks = {"prerouting": _AFTER_DNAT, "forward": _AFTER_FILTERS, "output": _AFTER_FILTERS}
    created = []
    for name in chains:
        hook = f" {{ type filter hook {name} priority {hooks[name]}; policy accept; }}" if name in hooks else ""
        created.append(f"add chain inet {TABLE} {name}{hook}")
    added = [f"add rule inet {TABLE} {name} {rule}" for name, body in chains.items() for rule in body]
    return "\n".join((lines[0], *created, *lines[1:], *added)) + "\n"


def _entries(path: str, link: str, direction: Direction, interfaces: Interfaces) -> dict[str, list[str]]:
    """Return the chain of a hook and those that it leads to, up to the choice of a class."""
    first = f"class4_{path}"
    before: list[str] = []
    if path == "output":
        # destination NAT in this hook changes the route, but not what `oif` sees
        before = [f"ip daddr @{LOCAL4} return", f"ip6 daddr @{LOCAL6} return", "fib daddr type local return"]
    chains = {f"tunnel_{path}": [*before, f"meta nfproto @{set_name(REST, direction, INNER)}", f"goto {first}"]}
    if interfaces.tunnels and path != "forward":
        pod = "daddr" if direction == "in" else "saddr"
        chains[f"envelope_{path}"] = [  # a pod's own use of a tunnel's port is ordinary traffic
            f"ip {pod} @{LOCAL4} goto {first}",
            f"ip6 {pod} @{LOCAL6} goto {first}",
            f"meta nfproto @{set_name(REST, direction, OUTER)}",
        ]
        before.append(f"meta l4proto {_ENVELOPES} goto envelope_{path}")
        if interfaces.tunnel_ports:
            ports = ", ".join(map(str, interfaces.tunnel_ports))
            before.append(f"udp dport {{ {ports} }} goto envelope_{path}")
    entered = first
    if before:
        entered = f"nic_{path}"
        chains[entered] = [*before, f"goto {first}"]
    chains[_HOOKS[path]] = [
        *(f'{link} "{name}" goto {entered}' for name in interfaces.nics),
        *(f'{link} "{name}" goto tunnel_{path}' for name in interfaces.tunnels),
    ]
    return chains


def _classes(classes: Classes, path: str, direction: Direction, version: int) -> tuple[dict[str, list[str]], list[str]]:
    """Return the chains that choose the class of a family, and the commands for its map if it needs one.

    The largest private network comes first: most traffic of clusters is in it. Most packets of the internet leave after
    two more rules: the first byte of the peer's address is in no range, and the pod has a counter.
    """
    family, pod = ("ip", ADDRESS4) if version == 4 else ("ip6", ADDRESS6)
    near, internet = f"near{version}_{path}", f"pods{version}_{path}_{INTERNET}"
    chains = {
        f"pods{version}_{path}_{cls}": [
            f"{family} {_END[direction][0]} @{set_name(pod, direction, cls)} return",
            f"goto {path}_{cls}",
        ]
        for cls in classes.names
    }
    if_ipv6 = f"meta nfproto ipv6 goto class6_{path}"
    ranges = classes.ranges(version)
    networks = [(network, each.cls) for each in ranges for network in each.networks(version)]
    peer = f"{family} {_END[direction][1]}"
    gotos = {network: f"{peer} {network} goto pods{version}_{path}_{cls}" for network, cls in networks}
    first = []
    for network in _commonest(networks):
        first.append(f"{_short(network, peer, direction)} goto pods{version}_{path}_{INTERNAL}")
        del gotos[network]
    known, unknown = chains[internet]
    chains[f"class{version}_{path}"] = [
        *([f"meta nfproto @{set_name(REST, direction, IPV6)}"] if version == 6 else []),
        *first,
        *_first_bytes(ranges, direction, version, near),
        known,
        *([if_ipv6] if version == 4 else []),
        unknown,
    ]
    chains[near] = [if_ipv6] if version == 4 else []
    map_: list[str] = []
    if len(networks) <= _NETWORKS_MAX:
        chains[near] += gotos.values()
    else:
        name = f"peer{version}_{path}"
        elements = ", ".join(f"{network} : goto pods{version}_{path}_{cls}" for network, cls in networks)
        map_ = [
            f"add map inet {TABLE} {name} {{ type ipv{version}_addr : verdict; flags interval; }}",
            f"flush map inet {TABLE} {name}",
            f"add element inet {TABLE} {name} {{ {elements} }}",
        ]
        chains[near].append(f"{peer} vmap @{name}")
    chains[near].append(f"goto {internet}")
    return chains, map_


def _commonest(networks: Sequence[tuple[Network, str]]) -> list[Network]:
    """Return the largest internal network with unicast addresses that are private; nothing if there are none."""
    private = [
        network
        for network, cls in networks
        if cls == INTERNAL
        and network.is_private
        and not network.is_loopback
        and not network.is_link_local
        and network.prefixlen < network.max_prefixlen  # not the broadcast address
    ]
    return sorted(private, key=lambda network: network.prefixlen)[:1]


def _short(network: Network, peer: str, direction: Direction) -> str:
    """Return the comparison with a network. If one byte of IPv6 decides, only that is read: 16 take longer."""
    if network.version == 4 or network.prefixlen > 8:
        return f"{peer} {network}"
    byte, mask = network.network_address.packed[0], network.netmask.packed[0]
    return f"@nh,{_PEER_BITS[6, direction]},8 & {mask} == {byte}"


def _first_bytes(ranges: Sequence[Range], direction: Direction, version: int, chain: str) -> list[str]:
    """Return the rule that leads peers whose first byte is that of some range to a chain.

    The kernel keeps such a set as a bitmap. Without the family, which `nft` would read first, the rule for IPv4
    reads a byte inside the source of IPv6 packets too: `chain` sends these on to their own.
    """
    shift = 24 if version == 4 else 120
    firsts = sorted({byte for each in ranges for byte in range(each.first >> shift, (each.last >> shift) + 1)})
    if not firsts:
        return []
    return [f"@nh,{_PEER_BITS[version, direction]},8 {{ {', '.join(map(str, firsts))} }} goto {chain}"]


def _subjects(path: str, direction: str, cls: str, levels: Sequence[int], marks: bool) -> list[str]:
    """Return the chain for packets of a class that no pod's address has: by socket, else the host's."""
    lines = []
    if path != "forward":
        if marks:
            mark = "socket mark" if path == "in" else "meta mark"
            lines.append(f"{mark} and {MASK:#x} @{set_name(MARK, direction, cls)} return")
        lines += [
            f"socket cgroupv2 level {level} @{set_name(cgroup_kind(level), direction, cls)} return" for level in levels
        ]
    lines.append(f"meta nfproto @{set_name(REST, direction, cls)}")
    return lines
