"""Chooses what counts traffic on a node: what the node itself uses."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from muster.network.traffic.backend import Backend
from muster.network.traffic.backends.ebpf import EbpfBackend
from muster.network.traffic.backends.legacy import LegacyBackend
from muster.network.traffic.backends.nftables import NftablesBackend
from muster.network.traffic.interfaces import Interfaces
from muster.network.traffic.mix import LEGACY, NFTABLES, look

AUTO, EBPF = "auto", "ebpf"
BackendName = Literal["auto", "nftables", "iptables-legacy", "ebpf"]
"""What the configuration names. `ebpf` is chosen by name only: it needs CAP_BPF."""

CAPABILITIES: Final[dict[str, tuple[str, ...]]] = {
    NFTABLES: ("NET_ADMIN",),
    LEGACY: ("NET_ADMIN", "NET_RAW"),
    EBPF: ("NET_ADMIN", "BPF"),
}
"""What each backend needs."""


def choose(
    name: BackendName,
    interfaces: Interfaces,
    *,
    cgroup_root: Path = Path("/sys/fs/cgroup"),
    pins: Path = Path("/sys/fs/bpf/muster-traffic"),
    proc_root: Path = Path("/proc"),
) -> Backend:
    """Return the named backend, with `auto` that of the node's firewall.

    Args:
        name: see BackendName.
        interfaces: the links that count.
        cgroup_root: the root of the unified hierarchy, as this process sees it.
        pins: see EbpfBackend.
        proc_root: where /proc is.

    Raises:
        OSError: the kernel did not list its rules.
    """
    chosen = look(proc_root).uses() if name == AUTO else name
    if chosen == LEGACY:
        return LegacyBackend(interfaces, cgroup_root=cgroup_root)
    if chosen == EBPF:
        return EbpfBackend(pins=pins, cgroup_root=cgroup_root)
    return NftablesBackend(interfaces, cgroup_root=cgroup_root)
