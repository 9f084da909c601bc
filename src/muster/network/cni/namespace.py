"""The pod's network namespace, through the files that the shim opened in it."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Final

from muster.network.cni.errors import CniError, Code
from muster.network.cni.invocation import Invocation
from muster.network.netlink.socket import ROUTE, NetlinkSocket

_OWN: Final = "/proc/thread-self/ns/net"
_IPV6_SETTINGS: Final = ("disable_ipv6", "accept_ra")


class PodNamespace:
    """A network namespace of a pod.

    Attributes:
        path: the runtime's path of it.
        descriptor: an open file of it, for requests that create links.
        netlink: a netlink socket in it.
    """

    def __init__(self, path: str, descriptor: int, netlink: NetlinkSocket, settings: dict[str, int]) -> None:
        self.path = path
        self.descriptor = descriptor
        self.netlink = netlink
        self._settings = settings

    def __enter__(self) -> PodNamespace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.netlink.close()

    def prepare_ipv6(self) -> None:
        """Turn IPv6 on for interfaces that are created from now on, without router advertisements.

        Some runtimes turn it off. Another pod could send router advertisements (CVE-2020-10749).

        Raises:
            CniError: the node's kernel has no IPv6.
        """
        for name in _IPV6_SETTINGS:
            if name not in self._settings:
                raise CniError(Code.KERNEL_REFUSED, "the node has no IPv6, but the pod has an IPv6 address")
            os.pwrite(self._settings[name], b"0\n", 0)


def pod_namespace(invocation: Invocation) -> PodNamespace | None:
    """Return the namespace of a request; None if it is gone or was not named.

    Raises:
        CniError: code 8 if it is the node's own, which is never a pod's.
    """
    files = invocation.files
    if "netns" not in files or "netlink" not in files:
        return None
    if os.path.samestat(os.fstat(files["netns"]), os.stat(_OWN)):
        raise CniError(
            Code.INVALID_NAMESPACE,
            f"CNI_NETNS {invocation.document.netns} is the node's own network namespace",
            "a pod with host networking needs no CNI; the runtime may have used the ID of a process that ended",
        )
    netlink = NetlinkSocket(ROUTE, fd=os.dup(files["netlink"]))
    settings = {name: file for name, file in files.items() if name in _IPV6_SETTINGS}
    return PodNamespace(invocation.document.netns, files["netns"], netlink, settings)
