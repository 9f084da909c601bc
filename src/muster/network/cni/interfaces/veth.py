"""Routed veths: the pod's next hop is the node itself, and the node has a route to each address of the pod.

The next hops are link-local addresses that exist nowhere. Both sides have permanent entries of the other one's hardware
address, so neither side sends ARP or neighbour discovery, and the node needs no proxy for them. Permanent entries do
not count against the limits of the neighbour table.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

import msgspec

from muster.network.addresses.attachment import Address, AttachmentKey
from muster.network.cni.errors import CniError, Code
from muster.network.cni.interfaces.wanted import Made, Wanted, differs
from muster.network.cni.names import alias, host_interface_name, host_mac, pod_mac
from muster.network.cni.namespace import PodNamespace
from muster.network.netlink import address as addr
from muster.network.netlink import link, neighbour, route
from muster.network.netlink.socket import Message, NetlinkError, NetlinkSocket

GATEWAY_IPV4: Final = "169.254.1.1"
GATEWAY_IPV6: Final = "fe80::1"


class Veth:
    """Creates, checks and deletes routed veths.

    Args:
        proc: the node's /proc.
    """

    def __init__(self, proc: Path) -> None:
        self._settings = proc / "sys/net"
        self._has_ipv6 = (self._settings / "ipv6").exists()  # otherwise the kernel refuses settings of IPv6

    def prepare(self, host: NetlinkSocket, wanted: Wanted) -> Wanted:
        """Give each address the full prefix: nothing but the node is on the pod's link."""
        full = tuple(msgspec.structs.replace(each, prefix=_bits(each)) for each in wanted.addresses)
        return wanted._replace(addresses=full)

    def create(self, host: NetlinkSocket, pod: PodNamespace, wanted: Wanted) -> Made:
        """Create and configure both ends."""
        key = wanted.key
        name = host_interface_name(key)
        if wanted.has_ipv6:
            pod.prepare_ipv6()
        begin = (
            link.new_veth(name, host_mac(key), wanted.mtu, key.ifname, pod_mac(key), pod.descriptor),
            link.set_up(name, alias=alias(key), link_local=not self._has_ipv6),
        )
        try:
            host.batch(begin, f"create {name}")
        except NetlinkError as error:
            if error.errno != errno.EEXIST:
                raise
            if link.find(host, name) is None:
                raise CniError(
                    Code.INVALID_NAMESPACE,
                    f"the namespace {pod.path} already has an interface {key.ifname}",
                    "another plugin of the list or an earlier ADD created it; delete the pod",
                ) from None
            self.delete(host, None, key)
            host.batch(begin, f"create {name}")
        outside, inside = host.link_number(name), pod.netlink.link_number(key.ifname)
        if not outside or not inside:
            raise CniError(Code.KERNEL_REFUSED, f"the interface {name} disappeared while ADD configured it")
        self._set(name, wanted)
        pod.netlink.batch(_inside(wanted, inside), f"configure {key.ifname} in the pod")
        host.batch(_outside(wanted, outside), f"configure {name}")
        return _made(wanted)

    def _set(self, name: str, wanted: Wanted) -> None:
        """Let the node forward the pod's packets, also where the defaults of new interfaces are hardened."""
        for each in ("ipv4", "ipv6") if wanted.has_ipv6 else ("ipv4",):
            _write(f"{self._settings}/{each}/conf/{name}/forwarding", b"1\n")
        if wanted.has_ipv6:
            conf = f"{self._settings}/ipv6/conf/{name}"
            _write(f"{conf}/disable_ipv6", b"0\n")
            _write(f"{conf}/accept_ra", b"0\n")  # a pod could take the node's traffic

    def delete(self, host: NetlinkSocket, pod: PodNamespace | None, key: AttachmentKey) -> None:
        """Delete the node's end, and the pod's with it."""
        name = host_interface_name(key)
        try:
            host.request(link.delete(name), f"delete {name}")
        except NetlinkError as error:
            if error.errno != errno.ENODEV:
                raise

    def check(self, host: NetlinkSocket, pod: PodNamespace, wanted: Wanted) -> Made:
        """Compare both ends, their addresses and routes with what ADD made."""
        key = wanted.key
        name = host_interface_name(key)
        outside, inside = link.find(host, name), link.find(pod.netlink, key.ifname)
        if outside is None or inside is None:
            missing = f"the node has no interface {name}" if outside is None else f"the pod has no {key.ifname}"
            raise differs(missing)
        _require(outside.peer == inside.number and inside.peer == outside.number, f"{name} belongs to another pod")
        _require(inside.mac == pod_mac(key), f"{key.ifname} has the hardware address {inside.mac}")
        _require(outside.up and inside.up, f"{name} or {key.ifname} is down")
        addresses = {(each.ip, each.prefix) for each in addr.all_addresses(pod.netlink) if each.link == inside.number}
        for version in {4 if ":" not in each.ip else 6 for each in wanted.addresses}:
            mine = [each for each in wanted.addresses if (":" in each.ip) == (version == 6)]
            within = {(each.destination, each.gateway) for each in route.all_routes(pod.netlink, version)}
            to_pod = {each.destination for each in route.all_routes(host, version) if each.link == outside.number}
            for each in mine:
                _require((each.ip, each.prefix) in addresses, f"{key.ifname} does not have the address {each.ip}")
                _require(f"{each.ip}/{_bits(each)}" in to_pod, f"the node has no route to {each.ip} by {name}")
                for destination in wanted.routes_of(each):
                    _require((destination, gateway_of(each)) in within, f"the pod has no route to {destination}")
        return _made(wanted)


def gateway_of(address: Address) -> str:
    """Return the next hop that a pod uses for an address's family."""
    return GATEWAY_IPV6 if ":" in address.ip else GATEWAY_IPV4


def _made(wanted: Wanted) -> Made:
    key = wanted.key
    gateways = tuple(gateway_of(each) for each in wanted.addresses)
    return Made(host_interface_name(key), host_mac(key), pod_mac(key), gateways)


def _write(path: str, value: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, value)
    finally:
        os.close(file)


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise differs(problem)


def _inside(wanted: Wanted, index: int) -> list[Message]:
    messages = [link.set_up("lo"), link.set_up(wanted.key.ifname)]
    for each in wanted.addresses:
        gateway = gateway_of(each)
        messages += [
            addr.add(index, each.ip, _bits(each)),
            route.add(f"{gateway}/{_bits(each)}", index),
            neighbour.add(index, gateway, host_mac(wanted.key)),
            *(route.add(destination, index, gateway) for destination in wanted.routes_of(each)),
        ]
    return messages


def _outside(wanted: Wanted, index: int) -> list[Message]:
    messages = []
    for each in wanted.addresses:
        messages += [
            route.add(f"{each.ip}/{_bits(each)}", index),
            neighbour.add(index, each.ip, pod_mac(wanted.key)),
        ]
    return messages


def _bits(address: Address) -> int:
    return 128 if ":" in address.ip else 32
