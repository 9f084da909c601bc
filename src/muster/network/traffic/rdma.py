"""RDMA traffic: the port counters of InfiniBand, RoCE and EFA, and which jobs use the devices.

RDMA passes by the kernel's network stack, so no firewall counts it, and the Ethernet counters of a NIC may not show it.
The port counters are all there is (Documentation/ABI/stable/sysfs-class-infiniband). They are charged to the job whose
processes hold the device open. If processes of several jobs do, the kernel does not know whose bytes they are. Then
they are a row of their own, and are not split by a guess.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from muster.network.traffic.backend import Count, CounterKey

RDMA: Final = "rdma"
"""The class of these rows. The comparison with the NIC leaves them out."""

_WORD_BYTES: Final = 4
_SATURATED: Final = 0xFFFFFFFF
"""Where devices stop that have 32 bits of counter only (PortCounters of the InfiniBand specification)."""
_DEVICES: Final = "/dev/infiniband/uverbs"


class RdmaPort(NamedTuple):
    """Counters of one port.

    Attributes:
        device: e.g. `mlx5_0`.
        port: its number.
        received, sent: packets and bytes.
        saturated: a counter has stopped at its largest value, and more bytes are not seen.
    """

    device: str
    port: str
    received: Count
    sent: Count
    saturated: bool = False


def read_ports(sys_root: Path = Path("/sys")) -> list[RdmaPort]:
    """Return the ports of all RDMA devices that this namespace sees, in order. Ports without counters are left out."""
    ports = []
    for device in _names(sys_root / "class/infiniband"):
        folder = sys_root / "class/infiniband" / device / "ports"
        for number in _names(folder):
            found = _standard(folder / number / "counters") or _efa(folder / number / "hw_counters")
            if found is not None:
                received, sent = found
                stuck = _WORD_BYTES * _SATURATED in (received.bytes, sent.bytes)
                ports.append(RdmaPort(device, number, received, sent, stuck))
    return ports


def port_subject(device: str, port: str) -> str:
    """Return the id of the subject of a port."""
    return f"{RDMA}:{device}/{port}"


def port_counts(ports: Iterable[RdmaPort]) -> dict[CounterKey, Count]:
    """Return the counters of ports, as a backend returns those of subjects."""
    counts: dict[CounterKey, Count] = {}
    for each in ports:
        subject = port_subject(each.device, each.port)
        counts[CounterKey(subject, RDMA, "in")] = each.received
        counts[CounterKey(subject, RDMA, "out")] = each.sent
    return counts


def device_users(
    processes: Mapping[str, Iterable[int]], *, proc_root: Path = Path("/proc"), sys_root: Path = Path("/sys")
) -> dict[str, frozenset[str]]:
    """Return who holds each RDMA device open.

    Args:
        processes: process ids in the namespace of `proc_root`, by who they belong to.
        proc_root: of the host.
        sys_root: of the host.

    Raises:
        PermissionError: the files of a process cannot be listed (CAP_SYS_PTRACE).
    """
    devices = {
        name: (sys_root / "class/infiniband_verbs" / name / "ibdev").read_text().strip()
        for name in _names(sys_root / "class/infiniband_verbs")
        if name.startswith("uverbs")
    }
    users: dict[str, set[str]] = {}
    for user, numbers in processes.items():
        for number in numbers:
            for path in _open_files(proc_root / str(number) / "fd"):
                device = devices.get(path.removeprefix("/dev/infiniband/")) if path.startswith(_DEVICES) else None
                if device is not None:
                    users.setdefault(device, set()).add(user)
    return {device: frozenset(names) for device, names in users.items()}


def charged(
    before: Mapping[str, frozenset[str]], now: Mapping[str, frozenset[str]], ports: Iterable[RdmaPort]
) -> dict[str, str | None]:
    """Return who pays for what each port counted between two looks: by subject, None if it is not known.

    A device that one job released and another opened in between is not known either. A port that neither look saw in
    use is left out: its bytes are the host's.
    """
    payers: dict[str, str | None] = {}
    for each in ports:
        users = before.get(each.device, frozenset()) | now.get(each.device, frozenset())
        if users:
            payers[port_subject(each.device, each.port)] = next(iter(users)) if len(users) == 1 else None
    return payers


def _standard(folder: Path) -> tuple[Count, Count] | None:
    data = [_number(folder / f"port_{way}_data") for way in ("rcv", "xmit")]
    packets = [_number(folder / f"port_{way}_packets") or 0 for way in ("rcv", "xmit")]
    if data[0] is None or data[1] is None:
        return None
    return Count(packets[0], data[0] * _WORD_BYTES), Count(packets[1], data[1] * _WORD_BYTES)


def _efa(folder: Path) -> tuple[Count, Count] | None:
    """Read AWS's adapter, which counts bytes, and only as counters of its hardware."""
    received, sent = _number(folder / "rx_bytes"), _number(folder / "tx_bytes")
    if received is None or sent is None:
        return None
    return Count(_number(folder / "rx_pkts") or 0, received), Count(_number(folder / "tx_pkts") or 0, sent)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # EINVAL of a port that has gone, or a driver's "N/A"
        return None


def _open_files(folder: Path) -> list[str]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []  # the process ended
    paths = []
    for name in names:
        try:
            paths.append(os.readlink(folder / name))
        except FileNotFoundError:
            continue
    return paths
