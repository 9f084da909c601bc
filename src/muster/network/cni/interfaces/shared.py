"""macvlan and ipvlan: pods on the node's own link, beside the node.

The node and its pods cannot reach each other on such a link, so the kubelet's probes by network fail
(docs/network-cni.md).
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from muster.network.addresses.attachment import AttachmentKey
from muster.network.cni.errors import CniError, Code
from muster.network.cni.interfaces.nic import cloud_of
from muster.network.cni.interfaces.uplink import uplink
from muster.network.cni.interfaces.wanted import Made, Wanted, differs
from muster.network.cni.names import alias, pod_mac
from muster.network.cni.namespace import PodNamespace
from muster.network.cni.netconf import Mode
from muster.network.netlink import address as addr
from muster.network.netlink import link, namespaceid, route
from muster.network.netlink.link import Link
from muster.network.netlink.socket import Message, NetlinkError, NetlinkSocket

_NO_KIND: Final = (errno.EOPNOTSUPP, errno.ENODEV)


class Shared:
    """Creates, checks and deletes macvlans or ipvlans.

    Args:
        mode: which of both.
        sys: the node's /sys.
    """

    def __init__(self, mode: Mode, sys: Path) -> None:
        self._mode = mode
        self._sys = sys

    def prepare(self, host: NetlinkSocket, wanted: Wanted) -> Wanted:
        """Choose the link below, and refuse those on which it cannot work."""
        below = link.find(host, wanted.master) if wanted.master else uplink(host)
        if below is None:
            missing = f"no interface {wanted.master}" if wanted.master else "no default route"
            raise CniError(Code.INVALID_CONFIG, f"the node has {missing}; set `master`")
        master = below.name
        if self._mode is Mode.MACVLAN and (cloud := cloud_of(master, self._sys)):
            raise CniError(
                Code.INVALID_CONFIG,
                f"macvlan cannot work on {master}: {cloud} drops packets of hardware addresses that it did not assign",
                "use mode veth, or ipvlan",
            )
        for each in wanted.addresses:
            if not each.gateway and wanted.routes_of(each):
                raise CniError(
                    Code.INVALID_CONFIG,
                    f"the block of address {each.ip} has no gateway, which {self._mode} needs",
                    "set the block's gateway, or use mode veth",
                )
        return wanted._replace(master=master, mtu=min(wanted.mtu, below.mtu))

    def create(self, host: NetlinkSocket, pod: PodNamespace, wanted: Wanted) -> Made:
        """Create and configure the interface."""
        key = wanted.key
        below = link.find(host, wanted.master)
        if below is None:
            raise CniError(Code.KERNEL_REFUSED, f"the interface {wanted.master} disappeared")
        if wanted.has_ipv6:
            pod.prepare_ipv6()
        namespaceid.assign(host, pod.descriptor)  # so that `delete` finds the interface without the namespace's file
        message = self._new(wanted, below.number, pod.descriptor)
        try:
            self._begin(host, message)
        except NetlinkError as error:
            if error.errno != errno.EEXIST:
                raise
            self.delete(host, pod, key)
            if link.find(pod.netlink, key.ifname) is not None:
                raise CniError(
                    Code.INVALID_NAMESPACE, f"the namespace {pod.path} already has an interface {key.ifname}"
                ) from None
            self._begin(host, message)
        pod.netlink.batch((link.set_up("lo"), link.set_up(key.ifname, alias=alias(key))), "set up")
        inside = link.find(pod.netlink, key.ifname)
        if inside is None:
            raise CniError(Code.KERNEL_REFUSED, f"the interface {key.ifname} disappeared while ADD configured it")
        messages = [addr.add(inside.number, each.ip, each.prefix) for each in wanted.addresses]
        for each in wanted.addresses:
            messages += [route.add(to, inside.number, each.gateway) for to in wanted.routes_of(each)]
        pod.netlink.batch(messages, f"configure {key.ifname} in the pod")
        return _made(wanted, inside)

    def check(self, host: NetlinkSocket, pod: PodNamespace, wanted: Wanted) -> Made:
        """Compare the interface, its addresses and routes with what ADD made."""
        inside = link.find(pod.netlink, wanted.key.ifname)
        if inside is None or not self._is_ours(inside, wanted.key):
            raise differs(f"the pod has no {self._mode} {wanted.key.ifname} of this attachment")
        if not inside.up:
            raise differs(f"{wanted.key.ifname} is down")
        addresses = {(each.ip, each.prefix) for each in addr.all_addresses(pod.netlink) if each.link == inside.number}
        for each in wanted.addresses:
            if (each.ip, each.prefix) not in addresses:
                raise differs(f"{wanted.key.ifname} does not have the address {each.ip}")
            routes = {(to.destination, to.gateway) for to in route.all_routes(pod.netlink, 6 if ":" in each.ip else 4)}
            for destination in wanted.routes_of(each):
                if (destination, each.gateway) not in routes:
                    raise differs(f"the pod has no route to {destination}")
        return _made(wanted, inside)

    def delete(self, host: NetlinkSocket, pod: PodNamespace | None, key: AttachmentKey) -> None:
        """Delete the interface, also in a namespace whose file is gone but which some process still holds."""
        if pod is not None:
            found = link.find(pod.netlink, key.ifname)
            if found is not None and self._is_ours(found, key):
                _delete(pod.netlink, link.delete(key.ifname), key)
            return
        for number in namespaceid.all_numbers(host):
            found = link.find(host, key.ifname, elsewhere=number)
            if found is not None and self._is_ours(found, key):
                _delete(host, link.delete(key.ifname, elsewhere=number), key)

    def _new(self, wanted: Wanted, below: int, namespace: int) -> Message:
        key = wanted.key
        if self._mode is Mode.IPVLAN:
            return link.new_ipvlan(key.ifname, wanted.mtu, below, namespace)
        return link.new_macvlan(key.ifname, pod_mac(key), wanted.mtu, below, namespace)

    def _begin(self, host: NetlinkSocket, message: Message) -> None:
        try:
            host.request(message, f"create a {self._mode}")
        except NetlinkError as error:
            if error.errno not in _NO_KIND:
                raise
            raise CniError(
                Code.INVALID_CONFIG,
                f"the node's kernel has no {self._mode}",
                f"load the module {self._mode}, or use mode veth",
            ) from None

    def _is_ours(self, found: Link, key: AttachmentKey) -> bool:
        """Whether a link belongs to an attachment. One without an alias was left by a kill right after its creation."""
        if found.kind != self._mode or found.alias not in ("", alias(key)):
            return False
        return self._mode is Mode.IPVLAN or found.mac == pod_mac(key)


def _delete(netlink: NetlinkSocket, message: Message, key: AttachmentKey) -> None:
    try:
        netlink.request(message, f"delete {key.ifname} in the pod")
    except NetlinkError as error:
        if error.errno != errno.ENODEV:
            raise


def _made(wanted: Wanted, inside: Link) -> Made:
    return Made("", "", inside.mac, tuple(each.gateway for each in wanted.addresses))
