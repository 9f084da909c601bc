"""Section `pods` of the network agent's configuration."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from muster.network.addresses import config as addresses
from muster.network.addresses.config import AddressesConfig
from muster.network.cni.netconf import MTU_MAX, MTU_MIN, Mode

INTERNAL: Final = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
"""Private addresses (RFC 1918, RFC 6598, RFC 4193)."""

_SOCKET_BYTES_MAX: Final = 107  # unix(7)


class MasqueradeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """SNAT of pods to the node's address.

    Attributes:
        enabled: whether packets of pods to other than internal addresses get the node's address.
        internal: CIDRs that see the pods' own addresses.
    """

    enabled: bool = True
    internal: tuple[str, ...] = INTERNAL


class PodsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Addresses and network of pods, by Muster's CNI plugin.

    Attributes:
        enabled: whether this part runs.
        cni_version: of the list of plugins. 1.1.0 has GC and STATUS, and needs containerd 2 or CRI-O 1.32.
        addresses: where the addresses of pods come from.
        mode: how pods are connected.
        master: for macvlan and ipvlan, the node's interface below; empty: that of the default route.
        mtu: bytes; 0: that of the interface towards the default gateway.
        masquerade: SNAT of pods.
        host_ports: whether the list has the plugin `portmap`, which must be in `binDir`.
        bandwidth: whether the list has the plugin `bandwidth`, which must be in `binDir`. Not with Muster's own limits.
        network_policy_enforcer: which program enforces NetworkPolicies, such as `kube-network-policies`. Muster does
            not. While it is empty and NetworkPolicies exist, the list of plugins is not installed.
        install: whether the agent installs the plugin and its list on the node.
        socket: the daemon's socket, as the runtime sees it.
        bin_dir: the runtime's folder of plugins, as the agent sees it.
        net_dir: the runtime's folder of lists, as the agent sees it.
    """

    enabled: bool = False
    cni_version: Literal["0.4.0", "1.0.0", "1.1.0"] = "1.0.0"
    addresses: AddressesConfig = AddressesConfig()
    mode: Mode = Mode.VETH
    master: str = ""
    mtu: int = 0
    masquerade: MasqueradeConfig = MasqueradeConfig()
    host_ports: bool = True
    bandwidth: bool = False
    network_policy_enforcer: str = ""
    install: bool = True
    socket: str = "/run/muster/network/cni.sock"
    bin_dir: str = "/host/opt/cni/bin"
    net_dir: str = "/host/etc/cni/net.d"


def problems(config: PodsConfig) -> Iterator[tuple[str, str]]:
    """Yield (path, what to change) of values that are not possible."""
    for path, what in addresses.problems(config.addresses):
        yield f"$.addresses{path.removeprefix('$')}", what
    if config.mtu and not MTU_MIN <= config.mtu <= MTU_MAX:
        yield "$.mtu", f"{config.mtu} is not possible; write 0, or {MTU_MIN} to {MTU_MAX}"
    if config.mode is Mode.CHAINED:
        yield "$.mode", "chained is for lists of another network's plugins; write veth, macvlan or ipvlan"
    if config.mode is Mode.VETH and config.master:
        yield "$.master", "is only for macvlan and ipvlan; leave it out"
    if config.mode is not Mode.VETH and config.host_ports:
        yield "$.hostPorts", f"packets of {config.mode} pods do not pass the rules of the node; write false"
    if config.mode is not Mode.VETH and config.masquerade.enabled:
        yield "$.masquerade.enabled", f"packets of {config.mode} pods do not pass the rules of the node; write false"
    for name, path in (("socket", config.socket), ("binDir", config.bin_dir), ("netDir", config.net_dir)):
        if not Path(path).is_absolute():
            yield f"$.{name}", f"{path!r} is not an absolute path"
    if len(config.socket.encode()) > _SOCKET_BYTES_MAX:
        yield "$.socket", f"has more than {_SOCKET_BYTES_MAX} bytes; choose a shorter path"
    for place, cidr in enumerate(config.masquerade.internal):
        try:
            ipaddress.ip_network(cidr)
        except ValueError as error:
            yield f"$.masquerade.internal[{place}]", f"{error}; write a CIDR such as 10.0.0.0/8"
