"""A node whose pods are limited by a Shaper, in network namespaces of the test."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from muster.network.netlink.socket import ROUTE, NetlinkSocket
from muster.network.shaping.shaper import PodUse, Reserved, Shaper
from muster.network.uplink.wire import Pair
from tests.support.networknamespaces import Node

INTERNAL: Final[Mapping[ipaddress.IPv4Network | ipaddress.IPv6Network, bool]] = {
    ipaddress.ip_network(each): False for each in ("10.0.0.0/8", "fd00::/8")
}
MEGA: Final = 1_000_000
_START: Final = Pair(10 * MEGA, 10 * MEGA)


class ShapedNode:
    """A node and its Shaper.

    Attributes:
        node: the namespaces.
        shaper: of the host. Pod number n is the subject `podN`.
    """

    def __init__(
        self,
        node: Node,
        state: Path,
        *,
        start: Pair = _START,
        internal: Mapping[ipaddress.IPv4Network | ipaddress.IPv6Network, bool] = INTERNAL,
        patterns: Iterable[str] = ("*",),
    ) -> None:
        self.node = node
        self.socket = node.host.call(NetlinkSocket, ROUTE)
        self.shaper = Shaper(self.socket, classes=internal, reserved=Reserved(), state=state, patterns=patterns)
        try:
            self.adopted = self.shaper.setup(start)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        self.socket.close()

    def limit(self, *mega: tuple[float, float] | None, rest: float = 1) -> Pair:
        """Set the limits of the pods, (in, out) in Mbit/s each, and of the rest."""
        limits = {
            f"pod{number}": None if each is None else Pair(round(each[0] * MEGA), round(each[1] * MEGA))
            for number, each in enumerate(mega)
        }
        addresses = {f"pod{number}": self.node.addresses(number) for number in range(len(mega))}
        return self.shaper.apply(limits, Pair(round(rest * MEGA), round(rest * MEGA)), addresses)

    def use(self, subject: str) -> PodUse:
        return self.shaper.measure()[subject]

    def tc(self) -> str:
        """What tc and ip show about the host, without counters."""
        host = self.node.host
        shown = [host.run("tc", "qdisc", "show"), host.run("ip", "-o", "link", "show")]
        for number in range(len(self.node.pods)):
            shown += [host.run("tc", "filter", "show", "dev", f"pod{number}", side) for side in ("ingress", "egress")]
        return "\n".join(shown)
