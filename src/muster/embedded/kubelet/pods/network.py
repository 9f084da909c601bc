"""Assigns an address to each pod: on this machine's loopback, or in a separate network namespace."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import ipaddress
from pathlib import Path
from typing import Protocol

from muster.embedded.kubelet.containers.process import run_helper
from muster.embedded.kubelet.pods.pool import AddressPool

_NAMESPACES = Path("/run/netns")


class NetworkError(Exception):
    """A pod's network could not be created."""


@dataclasses.dataclass(frozen=True)
class Attachment:
    """A pod's address; `netns` is the file of its network namespace, "" for the machine's own."""

    ip: str
    netns: str = ""


class PodNetwork(Protocol):
    """Gives pods their addresses."""

    async def attach(self, pod_uid: str, preferred: str = "") -> Attachment:
        """Give a pod an address, `preferred` if possible. Raises NetworkError or Exhausted."""

    async def detach(self, pod_uid: str, attachment: Attachment) -> None:
        """Release the address, when no process of the pod runs."""

    async def close(self) -> None:
        """Remove interfaces and namespaces from this machine."""


class HostNetwork:
    """Addresses of 127.0.0.0/8; every process of this machine may bind all of them."""

    def __init__(self, cidr: str, node_address: str) -> None:
        self._pool = AddressPool(cidr, reserved=(node_address,))

    async def attach(self, pod_uid: str, preferred: str = "") -> Attachment:
        """Give a pod an address."""
        return Attachment(self._pool.take(preferred))

    async def detach(self, pod_uid: str, attachment: Attachment) -> None:
        """Take it back."""
        self._pool.give_back(attachment.ip)

    async def close(self) -> None:
        """Do nothing: this network creates nothing."""


class NamespaceNetwork:
    """A network namespace per pod, joined by veth pairs to one bridge per cluster. Needs root and `ip`.

    Everything made here is named after the cluster and pod, and nothing else is touched: no forwarding, no firewall.
    Pods reach each other and, at the bridge's address of their node, this machine.
    """

    def __init__(self, cidr: str, cluster_id: str, node: str) -> None:
        """Check the range. Raises ValueError if it is not private, or in the loopback range."""
        self._range = ipaddress.ip_network(cidr)
        if self._range.is_loopback or not self._range.is_private:
            raise ValueError(f"--pod-cidr {cidr}: network namespaces need a private range, such as 10.11.0.0/16")
        self.gateway = str(self._range[1])
        self._pool = AddressPool(cidr, reserved=(self.gateway,))
        self._bridge = f"mb{_short(cluster_id)}"
        self._prefix = f"muster-{_short(cluster_id)}-{_short(node)}-"

    async def prepare(self) -> None:
        """Create the bridge if it is missing, add this node's address, and remove leftovers of a crash of the node."""
        with contextlib.suppress(NetworkError):
            await _ip("link", "add", self._bridge, "type", "bridge")
        await _ip("link", "set", self._bridge, "up")
        with contextlib.suppress(NetworkError):
            await _ip("address", "add", f"{self.gateway}/{self._range.prefixlen}", "dev", self._bridge)
        for left in self._left_namespaces():
            await _ip("netns", "delete", left)

    async def attach(self, pod_uid: str, preferred: str = "") -> Attachment:
        """Create a namespace, and connect it to the bridge by a veth pair."""
        address = self._pool.take(preferred)
        namespace, inside, outside = self._prefix + _short(pod_uid), "eth0", f"mv{_short(pod_uid)}"
        try:
            await _ip("netns", "add", namespace)
            await _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", namespace)
            await _ip("link", "set", outside, "master", self._bridge, "up")
            await _ip("-n", namespace, "link", "set", "lo", "up")
            await _ip("-n", namespace, "address", "add", f"{address}/{self._range.prefixlen}", "dev", inside)
            await _ip("-n", namespace, "link", "set", inside, "up")
            await _ip("-n", namespace, "route", "add", "default", "dev", inside)
        except NetworkError:
            await self.detach(pod_uid, Attachment(address, str(_NAMESPACES / namespace)))
            raise
        return Attachment(address, str(_NAMESPACES / namespace))

    async def detach(self, pod_uid: str, attachment: Attachment) -> None:
        """Remove the namespace and its veth pair."""
        with contextlib.suppress(NetworkError):
            await _ip("link", "delete", f"mv{_short(pod_uid)}")
        with contextlib.suppress(NetworkError):
            await _ip("netns", "delete", Path(attachment.netns).name)
        self._pool.give_back(attachment.ip)

    async def close(self) -> None:
        """Remove this node's address, and the bridge if no pod of any node uses it."""
        with contextlib.suppress(NetworkError):
            await _ip("address", "delete", f"{self.gateway}/{self._range.prefixlen}", "dev", self._bridge)
        ports = await _ip("-o", "link", "show", "master", self._bridge)
        addresses = await _ip("-o", "-4", "address", "show", "dev", self._bridge)
        if not ports.strip() and not addresses.strip():
            await _ip("link", "delete", self._bridge)

    def _left_namespaces(self) -> list[str]:
        return sorted(path.name for path in _NAMESPACES.glob(f"{self._prefix}*"))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


async def _ip(*arguments: str) -> str:
    code, output = await run_helper(["ip", *arguments])
    if code != 0:
        raise NetworkError(f"ip {' '.join(arguments)}: {output.strip()}")
    return output
