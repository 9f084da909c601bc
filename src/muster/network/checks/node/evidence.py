"""What is known about a node's network. The rules read it without I/O."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from muster.network.netlink.link import Link
from muster.network.netlink.paths import PathRoute
from muster.network.plan.needs import CONNECTIONS_PER_POD
from muster.network.plan.request import PodNetwork


class Conntrack(msgspec.Struct, frozen=True):
    """The table of tracked connections.

    Attributes:
        entries, limit: connections now, and at most (nf_conntrack_max).
        counters: of /proc/net/stat/nf_conntrack, summed over the CPUs.
    """

    entries: int
    limit: int
    counters: Mapping[str, int]


class NeighbourTable(msgspec.Struct, frozen=True):
    """The neighbour table of one IP version. It is one table for all network namespaces of the machine.

    Attributes:
        version: 4 or 6.
        entries: in the whole machine.
        permanent: permanent entries of the host's namespace. They do not count towards the limit (Linux 5.0).
        thresholds: gc_thresh1 to gc_thresh3.
        counters: of /proc/net/stat/arp_cache or ndisc_cache, summed over the CPUs.
    """

    version: int
    entries: int
    permanent: int
    thresholds: tuple[int, int, int]
    counters: Mapping[str, int]

    @property
    def counted(self) -> int:
        """Entries that count towards the limit."""
        return max(0, self.entries - self.permanent)


class Connections(msgspec.Struct, frozen=True):
    """TCP connections of the host's namespace with one address and port.

    Attributes:
        local, remote: addresses.
        port: at the remote address.
        count: connections, also those that wait for late packets.
    """

    local: str
    remote: str
    port: int
    count: int


class NodeEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What was read on a node. What could not be read is None or empty.

    Attributes:
        conntrack: None if the kernel tracks no connections.
        neighbours: one for each IP version that could be read.
        links: links of the host's namespace.
        routes: routes of all tables, IPv4 and IPv6.
        exceptions: paths that the kernel has learned, each with a smaller MTU than its link.
        rules: policy rules besides the three that the kernel makes.
        has_ipv6: whether a link has an IPv6 address that is not link-local.
        reverse_path: value of rp_filter by link, with `all`.
        counters: of TcpExt in /proc/net/netstat.
        ports: number of local ports that connections may use; 0 if not known.
        connections: TCP connections by destination, the largest number first.
        bridge_nf: value of bridge-nf-call-iptables; None without br_netfilter.
        allowances: packets beyond the cloud's limits, by link and counter.
        unread: what could not be read, and why.
    """

    conntrack: Conntrack | None = None
    neighbours: tuple[NeighbourTable, ...] = ()
    links: tuple[Link, ...] = ()
    routes: tuple[PathRoute, ...] = ()
    exceptions: tuple[PathRoute, ...] = ()
    rules: int = 0
    has_ipv6: bool = False
    reverse_path: Mapping[str, int] = {}
    counters: Mapping[str, int] = {}
    ports: int = 0
    connections: tuple[Connections, ...] = ()
    bridge_nf: int | None = None
    allowances: Mapping[str, int] = {}
    unread: tuple[str, ...] = ()

    def link(self, number: int) -> Link | None:
        """Return the link with this number."""
        return next((link for link in self.links if link.number == number), None)


class Settings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What the operator plans, and the limits of the rules.

    Attributes:
        planned_nodes: nodes that this node may exchange packets with; 0 if not known.
        planned_neighbours: entries of the neighbour table that the plan needs (`muster network plan`); 0 computes them
            from the nodes and pods.
        pods: most pods of this node.
        pod_network: how packets of pods travel, as in the plan. `overlay` needs at least as much as `routes`.
        connections_per_pod: open at the same time. With `native`, each may be to another pod.
        near_percent: a table or range that is fuller than this is reported.
        cloud_ports: ports that the cloud gives this node for connections to public addresses; 0 for no limit. Azure
            gives 1024 by default.
    """

    planned_nodes: int = 0
    planned_neighbours: int = 0
    pods: int = 110
    pod_network: PodNetwork = "overlay"
    connections_per_pod: int = CONNECTIONS_PER_POD
    near_percent: float = 80.0
    cloud_ports: int = 0
