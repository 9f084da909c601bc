"""A node's /proc as files, in the kernel's format: what the checks of the network read and the tuning writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from muster.network.checks.node.evidence import NodeEvidence
from muster.network.checks.node.read import NodePaths, read_node

CONNTRACK: Final = (
    "entries",
    "clashres",
    "found",
    "new",
    "invalid",
    "ignore",
    "delete",
    "chainlength",
    "insert",
    "insert_failed",
    "drop",
    "early_drop",
    "icmp_error",
    "expect_new",
    "expect_create",
    "expect_delete",
    "search_restart",
)
NEIGHBOURS: Final = (
    "entries",
    "allocs",
    "destroys",
    "hash_grows",
    "lookups",
    "hits",
    "res_failed",
    "rcv_probes_mcast",
    "rcv_probes_ucast",
    "periodic_gc_runs",
    "forced_gc_runs",
    "unresolved_discards",
    "table_fulls",
)
_SOCKETS: Final = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
BOOT: Final = "6f1c3a52-0000-4000-8000-000000000001"


def read_files(where: NodePaths) -> NodeEvidence:
    """Read the files alone, of a node with IPv6: other programs change the links and routes of this machine."""
    found = read_node(where)
    return replace(
        found,
        neighbours=tuple(replace(each, permanent=0) for each in found.neighbours),
        links=(),
        routes=(),
        exceptions=(),
        rules=0,
        has_ipv6=True,
        allowances={},
        unread=(),
    )


class NetworkProc:
    """The files of a node. Each method replaces one.

    Args:
        proc: an empty folder, which becomes the node's /proc.
    """

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.write("sys/kernel/random/boot_id", BOOT)
        for family in ("ipv4", "ipv6"):
            for number, value in enumerate((128, 512, 1024), start=1):
                self.sysctl(f"{family}/neigh/default/gc_thresh{number}", value)
        self.sysctl("ipv4/ip_local_port_range", "32768\t60999")
        self.conntrack(entries=100, limit=262144)
        self.neighbours(4, entries=10)
        self.neighbours(6, entries=10)

    def write(self, name: str, text: str) -> None:
        """Replace a file."""
        path = self.proc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def sysctl(self, name: str, value: object) -> None:
        """Set a value below sys/net."""
        self.write(f"sys/net/{name}", str(value))

    def value(self, name: str) -> int:
        """Return a value below sys/net."""
        return int((self.proc / "sys/net" / name).read_text())

    def conntrack(self, *, entries: int, limit: int, cpus: int = 2, **counters: int) -> None:
        """Set the table of connections. Each CPU counts `counters`."""
        self.sysctl("netfilter/nf_conntrack_count", entries)
        self.sysctl("netfilter/nf_conntrack_max", limit)
        self.sysctl("netfilter/nf_conntrack_buckets", limit // 4)
        self._per_cpu("nf_conntrack", CONNTRACK, cpus, {"entries": entries, **counters})

    def neighbours(self, version: int, *, entries: int, cpus: int = 2, **counters: int) -> None:
        """Set the neighbour table of an IP version. Each CPU counts `counters`."""
        name = "arp_cache" if version == 4 else "ndisc_cache"
        self._per_cpu(name, NEIGHBOURS, cpus, {"entries": entries, **counters})

    def sockets(self, *lines: tuple[str, str, str]) -> None:
        """Set the TCP sockets: (local address:port, remote address:port, state), in the kernel's hex."""
        rows = (
            f"{number:4}: {local} {remote} {state} 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0\n"
            for number, (local, remote, state) in enumerate(lines)
        )
        self.write("net/tcp", _SOCKETS + "".join(rows))

    def counters(self, values: Mapping[str, int]) -> None:
        """Set counters of TcpExt."""
        names, numbers = " ".join(values), " ".join(map(str, values.values()))
        self.write("net/netstat", f"TcpExt: {names}\nTcpExt: {numbers}\nIpExt: InNoRoutes\nIpExt: 7")

    def _per_cpu(self, name: str, columns: Sequence[str], cpus: int, values: Mapping[str, int]) -> None:
        assert set(values) <= set(columns), f"the kernel has no column {set(values) - set(columns)}"
        row = " ".join(f"{values.get(column, 0):08x}" for column in columns)
        self.write(f"net/stat/{name}", "\n".join([" ".join(columns), *[row] * cpus]))
