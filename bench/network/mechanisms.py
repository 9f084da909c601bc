"""What mechanisms of accounting cost a packet: the rules of nftables, programs at netfilter's hooks, and tcx programs.

Only nftables is a part of Muster here. Each mechanism has namespaces of its own. They take turns in random order, and
the lowest tenth of the turns counts, because the machine is never alone. After the turns, each counter must equal what
was sent. Programs, links and namespaces end with their descriptors, so nothing outlives the process.
"""

from __future__ import annotations

import contextlib
import random
import socket
import time
from statistics import median
from typing import Final, NamedTuple

from bench.network import mechanisms_netfilter, mechanisms_tcx
from bench.network.accounting import PODS, packet_ns, sending, subjects
from bench.network.mechanisms_btf import VMLINUX
from bench.network.mechanisms_links import TCX_EGRESS
from bench.network.mechanisms_list import FORWARD, MECHANISMS, NEIGHBOURS, Place
from bench.network.mechanisms_maps import Counts
from bench.report import Goal, spread
from muster.network.traffic.backend import Count, Direction
from muster.network.traffic.classes import INTERNAL, INTERNET
from tests.support.networknamespaces import Network, Node

VERSIONS: Final = (4, 6)
_PEERS: Final = {
    (4, INTERNET): "198.51.100.7",
    (6, INTERNET): "2001:db8:ff::7",
    (4, INTERNAL): "10.250.0.1",
    (6, INTERNAL): "fd00:9::7",
}
_WARM_UP: Final = 150
_PROBES: Final = 20
"""Packets of each family, class and direction beside the turns, for the check of the counters."""
_DATA: Final = bytes(64)
_HEADERS: Final = {4: 28, 6: 48}
_LOWEST: Final = 10
_SETTLED_S: Final = 10.0
_BASE: Final = "none"
_NOTHING: Final = Count(0, 0)
_WITH_NEIGHBOURS: Final[tuple[str, Direction]] = (INTERNAL, "out")
"""This counter of NEIGHBOURS also holds neighbour discovery."""


class Size(NamedTuple):
    """How much to measure: pods on the host, turns of each mechanism and family, packets of a turn."""

    pods: int = PODS
    turns: int = 100
    packets: int = 1500


FULL: Final = Size()


class Contender:
    """A mechanism on a host of its own.

    Attributes:
        name: that of the mechanism.
        clients: sockets of a pod that send to the internet, by version of IP.
    """

    def __init__(self, name: str, stack: contextlib.ExitStack, size: Size) -> None:
        self.name = name
        self._size = size
        self._sent: Counts = {}
        self._node = stack.enter_context(Network()).node(pods=1)
        for peer in _PEERS.values():
            self._node.outside_address(peer)
        self._read = MECHANISMS[name](Place(self._node, subjects(size.pods, VERSIONS), stack))
        self.clients: dict[int, socket.socket] = {}
        for version in VERSIONS:
            client = stack.enter_context(sending(self._node.pods[0], self._node.outside, _PEERS[version, INTERNET]))
            client.settimeout(None)  # otherwise Python polls before each packet
            self.clients[version] = client

    def turn(self, version: int) -> float:
        """Return the nanoseconds of a packet in a turn."""
        self._expect(version, INTERNET, "out", _WARM_UP + self._size.packets)
        return packet_ns(self.clients[version].send, self._size.packets, _WARM_UP)

    def probe(self) -> None:
        """Send some packets to and from both classes."""
        pod, outside = self._node.pods[0], self._node.outside
        for (version, cls), peer in _PEERS.items():
            address = Node.addresses(0)[VERSIONS.index(version)]
            with sending(pod, outside, peer) as out, sending(outside, pod, address, peer) as back:
                for _ in range(_PROBES):
                    out.send(_DATA)
                    back.send(_DATA)
            self._expect(version, cls, "out", _PROBES)
            self._expect(version, cls, "in", _PROBES)

    def check(self, settled_s: float = _SETTLED_S) -> None:
        """Compare the counters with what was sent, after `probe`. The kernel may deliver the last packets later.

        Raises:
            AssertionError: they differ.
        """
        if self._read is None:
            return
        deadline = time.monotonic() + settled_s
        while not self._exact(found := self._read()):
            assert time.monotonic() < deadline, f"{self.name} counted {found} instead of {self._sent}"
            time.sleep(0.01)

    def _exact(self, found: Counts) -> bool:
        if self.name == NEIGHBOURS and found.get(_WITH_NEIGHBOURS, _NOTHING).packets >= _PROBES * len(VERSIONS):
            found = {**found, _WITH_NEIGHBOURS: self._sent[_WITH_NEIGHBOURS]}
        return found == self._sent

    def _expect(self, version: int, cls: str, direction: Direction, packets: int) -> None:
        sent = Count(packets, packets * (len(_DATA) + _HEADERS[version]))
        self._sent[cls, direction] = self._sent.get((cls, direction), _NOTHING).plus(sent)


def unsupported() -> str:
    """Return why this kernel or user cannot run the programs; "" if they can."""
    if not VMLINUX.exists():
        return f"the kernel was built without {VMLINUX}"
    try:
        with Network() as network, contextlib.ExitStack() as stack:
            place = Place(network.node(pods=1), (), stack)
            place.at_link(mechanisms_tcx.empty(TCX_EGRESS), place.nic, TCX_EGRESS)
            place.at_hook(mechanisms_netfilter.empty(), 4, FORWARD, 0)
    except OSError as error:
        return f"programs need root and Linux 6.6 with CONFIG_NETFILTER_BPF_LINK: {error}"
    return ""


def compare(size: Size, seed: int) -> dict[tuple[str, int], float]:
    """Return nanoseconds per packet by mechanism and version of IP, the median of the lowest tenth of the turns."""
    order = random.Random(seed)
    with contextlib.ExitStack() as stack:
        contenders = [Contender(name, stack, size) for name in MECHANISMS]
        times: dict[tuple[str, int], list[float]] = {}
        for _ in range(size.turns):
            order.shuffle(contenders)
            for version in VERSIONS:
                for each in contenders:
                    times.setdefault((each.name, version), []).append(each.turn(version))
        for each in contenders:
            each.probe()
            each.check()
    return {key: median(sorted(values)[: max(1, size.turns // _LOWEST)]) for key, values in times.items()}


def measure(repetitions: int, size: Size = FULL) -> tuple[dict[str, float], list[Goal]]:
    """Return figures: nanoseconds of a packet without accounting, and what each mechanism adds, in percent."""
    if reason := unsupported():
        raise SystemExit(f"mechanisms: {reason}")
    runs = [compare(size, seed) for seed in range(repetitions)]
    figures: dict[str, float] = {}
    for version in VERSIONS:
        spread(f"ipv{version}_{_BASE}_ns", [run[_BASE, version] for run in runs], figures)
        for name in MECHANISMS:
            if name == _BASE:
                continue
            extra = [100 * (run[name, version] / run[_BASE, version] - 1) for run in runs]
            spread(f"ipv{version}_{name}_extra_percent", extra, figures)
    return figures, []
