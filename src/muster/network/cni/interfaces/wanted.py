"""What a pod's interface shall be, and what ADD made."""

from __future__ import annotations

from typing import NamedTuple

from muster.network.addresses.attachment import Address, AttachmentKey
from muster.network.cni.errors import CniError, Code


class Wanted(NamedTuple):
    """An interface of a pod.

    Attributes:
        key: the attachment.
        addresses: one of each family.
        mtu: bytes.
        routes: CIDRs to which the pod gets routes.
        master: the node's interface below, for kinds that have one.
    """

    key: AttachmentKey
    addresses: tuple[Address, ...]
    mtu: int
    routes: tuple[str, ...]
    master: str = ""

    @property
    def has_ipv6(self) -> bool:
        """Whether the pod has an IPv6 address."""
        return any(":" in each.ip for each in self.addresses)

    def routes_of(self, address: Address) -> tuple[str, ...]:
        """Return the routes of an address's family."""
        return tuple(each for each in self.routes if (":" in each) == (":" in address.ip))


class Made(NamedTuple):
    """An interface that exists.

    Attributes:
        host_interface: name of the node's side; empty if there is none.
        host_mac: its hardware address.
        mac: hardware address of the pod's side.
        gateways: the next hop of each address, in their order; empty if there is none.
    """

    host_interface: str
    host_mac: str
    mac: str
    gateways: tuple[str, ...]


def differs(problem: str) -> CniError:
    """Return the error of CHECK for an interface that is not as ADD made it."""
    return CniError(Code.DIFFERS, problem, "the pod has lost its network; delete the pod")
