"""The kernel's view: Muster's interfaces on the node, and what is routed to them. Blocking, and fast."""

from __future__ import annotations

import ipaddress

from muster.network.addresses.attachment import AttachmentKey
from muster.network.addresses.reconcile.snapshot import KernelView
from muster.network.cni.names import host_interface_name, key_of_alias
from muster.network.netlink import address, link, route
from muster.network.netlink.socket import ROUTE, NetlinkSocket


def look_at_kernel() -> KernelView | None:
    """Return the view in the network namespace of this process; None if the kernel did not answer.

    Addresses that are routed to other interfaces count as the node's own: they may be of pods of another CNI plugin.
    """
    try:
        with NetlinkSocket(ROUTE) as netlink:
            links = link.all_links(netlink)
            local = frozenset(each.ip for each in address.all_addresses(netlink))
            routes = [*route.all_routes(netlink, 4), *route.all_routes(netlink, 6)]
    except OSError:  # also if there is no file descriptor for a socket
        return None
    routed: dict[int, set[str]] = {}
    for each in routes:
        network = ipaddress.ip_network(each.destination)
        if network.num_addresses == 1 and each.link:
            routed.setdefault(each.link, set()).add(str(network.network_address))
    interfaces: dict[AttachmentKey, frozenset[str]] = {}
    ours: set[int] = set()
    for found in links:
        key = key_of_alias(found.alias)
        # An alias can be written by others, so the name, which follows from the attachment, must agree.
        if key is not None and found.name == host_interface_name(key):
            interfaces[key] = frozenset(routed.get(found.number, ()))
            ours.add(found.number)
    others = (ips for number, ips in routed.items() if number not in ours)
    return KernelView(interfaces, local.union(*others))
