"""Backends of traffic accounting in tests, and packets of known size."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

from muster.network.traffic.backend import HOST, TUNNEL, Backend, Count, CounterKey
from muster.network.traffic.backends.legacy import LegacyBackend
from muster.network.traffic.backends.nftables import NftablesBackend
from muster.network.traffic.classes import Classes
from muster.network.traffic.interfaces import Interfaces
from tests.support.networknamespaces import Namespace, need_namespaces
from tests.support.unifiedgroups import unified_root

INTERNET4, INTERNET6, STORE = "198.51.100.7", "2001:db8:f::7", "203.0.113.9"
INTERNAL = "10.200.0.1"
CLASSES = Classes(lists={"object-store": ["203.0.113.0/24"]})
HEADERS = {4: 28, 6: 48}
_UPLINK = Interfaces(("eth0",))


def need_backend(name: str) -> None:
    """Skip the test where the backend cannot run; fail it with MUSTER_REQUIRE_REAL=1."""
    need_namespaces(
        *{"nftables": ("nft",), "iptables-legacy": ("iptables-legacy-restore", "ip6tables-legacy-save")}[name]
    )


def fresh(name: str, links: Interfaces = _UPLINK) -> Backend:
    """Return a backend as a new agent has it, for the host of `Network.node`."""
    hierarchy = unified_root() or Path("/sys/fs/cgroup")
    if name == "iptables-legacy":
        return LegacyBackend(links, cgroup_root=hierarchy)
    return NftablesBackend(links, cgroup_root=hierarchy)


def datagrams(
    sender: Namespace, receiver: Namespace, address: str, count: int, *, size: int = 1000, mark: int = 0
) -> int:
    """Send datagrams to an address of the receiver until all are there; return their IP bytes."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with receiver.socket(family, socket.SOCK_DGRAM) as server, sender.socket(family, socket.SOCK_DGRAM) as client:
        server.bind((address, 0))
        if mark:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
        client.connect((address, server.getsockname()[1]))
        for _ in range(count):
            client.send(bytes(size))
            server.recv(size)
    return count * (size + HEADERS[6 if family == socket.AF_INET6 else 4])


def counted(counts: Mapping[CounterKey, Count]) -> dict[CounterKey, int]:
    """Return the bytes of rows that are not 0, without link-local packets of IPv6 that the kernel sends by itself."""
    rows = {key: count.bytes for key, count in counts.items() if key.subject != TUNNEL and count.bytes}
    return {key: size for key, size in rows.items() if key[:2] != (HOST, "internal")}
