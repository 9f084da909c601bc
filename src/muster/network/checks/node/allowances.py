"""Limits of the cloud for a network interface, which its driver counts (Amazon EC2: "Monitor network performance").

Amazon's driver counts packets that the network dropped beyond the machine's allowance: bandwidth, packets, tracked
connections, and 1024 packets/s to services such as the DNS resolver of the VPC.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from muster.api.finding import Fix, Measure, Severity
from muster.kube.counters import rise
from muster.network.checks.node.evidence import NodeEvidence, Settings
from muster.network.checks.problem import Kind, Problem

CHECK: Final = "allowance"
SUFFIX: Final = "_allowance_exceeded"
KINDS: Final = {
    (CHECK, "exceeded"): Kind(
        Severity.WARNING,
        "The cloud dropped packets beyond this machine's allowance",
        Fix(
            "For linklocal: run a DNS cache on each node, because the VPC's resolver takes 1024 packets/s from an "
            "interface. For conntrack: use a larger machine, or security groups that track no connections. For bw and "
            "pps: use a larger machine, or limit the traffic of jobs (docs/network-uplink.md).",
            ("ethtool -S LINK",),
        ),
    ),
}
_SIOCETHTOOL: Final = 0x8946
_GET_STRINGS, _GET_STATS, _GET_COUNTS = 0x1B, 0x1D, 0x37
_STATS: Final = 1
_NAME_BYTES: Final = 32
_MOST: Final = 4096


def read_allowances(links: Iterable[str]) -> dict[str, int]:
    """Return these counters of links, by `LINK NAME`. Links whose driver has none are left out. Needs no capability."""
    found: dict[str, int] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for link in links:
            try:
                counters = driver_counters(control, link)
            except OSError:
                continue
            found |= {f"{link} {name}": value for name, value in counters.items() if name.endswith(SUFFIX)}
    return found


def driver_counters(control: socket.socket, link: str) -> dict[str, int]:
    """Return all counters of a link's driver (linux/ethtool.h, ETHTOOL_GSTATS).

    Raises:
        OSError: the driver has none, or there is no such link.
    """
    counts = _asked(control, link, struct.pack("=IIQI", _GET_COUNTS, 0, 1 << _STATS, 0))
    count = min(struct.unpack_from("=I", counts, 16)[0], _MOST)
    if not struct.unpack_from("=Q", counts, 8)[0] or not count:
        return {}
    names = _asked(control, link, struct.pack("=III", _GET_STRINGS, _STATS, count) + bytes(count * _NAME_BYTES))
    values = _asked(control, link, struct.pack("=II", _GET_STATS, count) + bytes(count * 8))
    numbers = struct.unpack_from(f"={count}Q", values, 8)
    texts = (names[12 + at * _NAME_BYTES :][:_NAME_BYTES].split(b"\0")[0] for at in range(count))
    return {text.decode(errors="replace"): number for text, number in zip(texts, numbers, strict=True)}


def _asked(control: socket.socket, link: str, request: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(request, len(request))
    ifreq = struct.pack("16sP", link.encode()[:15], ctypes.addressof(buffer)) + bytes(16)
    fcntl.ioctl(control, _SIOCETHTOOL, ifreq)
    return buffer.raw


def find(now: NodeEvidence, before: NodeEvidence | None, settings: Settings) -> Iterator[Problem]:
    """Yield a problem for each counter that rose."""
    old = before.allowances if before is not None else {}
    for name, value in now.allowances.items():
        times = rise(old.get(name), value)
        if times:
            measure = Measure("dropped or queued packets", times, "", f"driver, {name}")
            yield Problem(CHECK, "exceeded", name, f"{times} packets in {name} since the last look", (measure,), times)
