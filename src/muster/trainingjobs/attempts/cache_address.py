"""The address of a node's cache, as its supervisor reported it and the Node confirms it."""

from __future__ import annotations

from collections.abc import Mapping

from muster.kube.objects.node import Node
from muster.trainingjobs.pods.slots import Slot


def cache_address(slot: Slot, nodes: Mapping[str, Node]) -> str:
    """Return IP:PORT of the cache on the slot's node; "" if there is none.

    A supervisor runs in the user's image, so it may report any address. Only an address of its own node counts:
    otherwise a job could make caches connect to other hosts.
    """
    said = slot.member.cache_address if slot.member is not None else ""
    host, _, port = said.rpartition(":")
    node = nodes.get(slot.node)
    if node is None or not port.isdecimal() or not 0 < int(port) < 65536:
        return ""
    own = {each.address for each in node.status.addresses if each.type == "InternalIP"}
    return said if host.strip("[]") in own else ""
