"""Mode `chained`: the plugin after another network's plugins. It makes no interface and holds no address."""

from __future__ import annotations

from typing import Any

from muster.network.cni.errors import CniError, Code
from muster.network.cni.interfaces.wanted import differs
from muster.network.cni.namespace import PodNamespace
from muster.network.cni.netconf import NetConf
from muster.network.cni.result import prev_result
from muster.network.netlink import link
from muster.network.netlink.socket import NetlinkSocket


def add(host: NetlinkSocket, pod: PodNamespace, ifname: str, conf: NetConf) -> dict[str, Any]:
    """Set the MTU of both ends of the pod's interface, and return the result of the plugins before.

    Raises:
        CniError: code 7 if no plugin before made the interface.
        NetlinkError: the kernel refused.
    """
    before = prev_result(conf)
    if before is None:
        raise CniError(Code.INVALID_CONFIG, "mode chained needs a plugin before this one in the list")
    inside = link.find(pod.netlink, ifname)
    if inside is None:
        raise CniError(Code.INVALID_CONFIG, f"no plugin before this one made the interface {ifname}")
    if conf.mtu:
        pod.netlink.request(link.set_mtu(ifname, conf.mtu), f"set the MTU of {ifname} in the pod")
        outside = link.by_index(host, inside.peer) if inside.kind == "veth" and inside.peer_elsewhere else None
        if outside is not None and outside.kind == "veth":
            host.request(link.set_mtu(outside.name, conf.mtu), f"set the MTU of {outside.name}")
    return {**before, "cniVersion": conf.cni_version}


def check(pod: PodNamespace, ifname: str, conf: NetConf) -> None:
    """Compare the interface with what ADD set.

    Raises:
        CniError: code 101.
    """
    inside = link.find(pod.netlink, ifname)
    if inside is None:
        raise differs(f"the pod has no interface {ifname}")
    if conf.mtu and inside.mtu != conf.mtu:
        raise differs(f"the MTU of {ifname} is {inside.mtu}, not {conf.mtu}")
