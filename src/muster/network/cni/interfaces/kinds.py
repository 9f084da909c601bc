"""The kinds of pod interfaces by mode."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from muster.network.addresses.attachment import AttachmentKey
from muster.network.cni.interfaces.shared import Shared
from muster.network.cni.interfaces.veth import Veth
from muster.network.cni.interfaces.wanted import Made, Wanted
from muster.network.cni.namespace import PodNamespace
from muster.network.cni.netconf import Mode
from muster.network.netlink.socket import NetlinkSocket


class Kind(Protocol):
    """A kind of interface."""

    def prepare(self, host: NetlinkSocket, wanted: Wanted) -> Wanted:
        """Return what `create` needs, before an address is reserved for good.

        Raises:
            CniError: code 7 if this kind cannot work on the node.
        """
        ...

    def create(self, host: NetlinkSocket, pod: PodNamespace, wanted: Wanted) -> Made:
        """Create and configure the interface. What an earlier attempt for the same attachment left is deleted first.

        Raises:
            CniError: code 8 if the pod already has an interface of this name.
            NetlinkError: the kernel refused. Then `delete` removes what exists.
        """
        ...

    def check(self, host: NetlinkSocket, pod: PodNamespace, wanted: Wanted) -> Made:
        """Return what exists.

        Raises:
            CniError: code 101 if it is not as wanted.
        """
        ...

    def delete(self, host: NetlinkSocket, pod: PodNamespace | None, key: AttachmentKey) -> None:
        """Delete the interface. It is not an error if it is gone.

        Raises:
            NetlinkError: the kernel refused, so the interface may still be there.
        """
        ...


def make_kinds(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> dict[Mode, Kind]:
    """Return the kinds. `proc` and `sys` are the node's."""
    return {
        Mode.VETH: Veth(proc),
        Mode.MACVLAN: Shared(Mode.MACVLAN, sys),
        Mode.IPVLAN: Shared(Mode.IPVLAN, sys),
    }
