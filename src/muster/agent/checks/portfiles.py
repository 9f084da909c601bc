"""Reads network ports from the kernel's files: /sys/class/infiniband and /sys/class/net.

Meanings: Documentation/ABI/stable/sysfs-class-infiniband and testing/sysfs-class-net of the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from muster.agent.checks.ports import COUNTERS, HW_COUNTERS, Port
from muster.kube.smallfiles import names_in, number_of, text_of

_IFF_UP: Final = 1
_UP: Final = {"up": True, "down": False, "lowerlayerdown": False, "dormant": False}
_DISABLED: Final = ("1", "3")
"""phys_state Sleep and Disabled: an operator has switched the port off."""


class PortFiles:
    """Reads the ports of a node. It remembers their devices, to distinguish a removed card from a moved one.

    Args:
        sys: the location of sysfs.
    """

    def __init__(self, sys: Path) -> None:
        self._infiniband, self._net = sys / "class/infiniband", sys / "class/net"
        self._devices: dict[str, str] = {}

    def read(self) -> list[Port]:
        """Return all ports of network cards, without virtual interfaces and virtual functions."""
        ports = [port for device in names_in(self._infiniband) for port in self._of_infiniband(device)]
        ports += [port for name in names_in(self._net) for port in self._of_net(name)]
        here = {port.name for port in ports}
        # A pod's network namespace may have taken an interface: its card is then still present.
        ports += [
            Port(name, {}, moved=True)
            for name, place in self._devices.items()
            if name not in here and os.path.exists(f"{place}/driver")
        ]
        return ports

    def _of_infiniband(self, device: str) -> Iterable[Port]:
        folder = self._infiniband / device
        for number in names_in(folder / "ports"):
            port = folder / "ports" / number
            name = f"{device}/{number}"
            self._devices[name] = os.path.realpath(folder / "device")
            counters = {code: number_of(port / "counters" / code) for code in COUNTERS}
            counters |= {code: number_of(port / "hw_counters" / code) for code in HW_COUNTERS}
            state, phys = text_of(port / "state") or "", text_of(port / "phys_state") or ""
            up = None if not state or phys.partition(":")[0] in _DISABLED else state.partition(":")[0] == "4"
            yield Port(
                name, _known(counters), up, _gbps(text_of(port / "rate")), text_of(folder / "board_id") or "",
            )  # fmt: skip

    def _of_net(self, name: str) -> Iterable[Port]:
        folder = self._net / name
        if not self._is_card(folder):
            return
        self._devices[name] = os.path.realpath(folder / "device")
        changes = number_of(folder / "carrier_changes")
        counters = {
            "flap": _first(number_of(folder / "carrier_down_count"), changes // 2 if changes is not None else None),
            "errors": _sum(number_of(folder / "statistics" / each) for each in ("rx_errors", "tx_errors")),
        }
        mbps = number_of(folder / "speed")  # -1 while the link is down, and EINVAL while the interface is down
        up = _UP.get(text_of(folder / "operstate") or "") if _is_switched_on(text_of(folder / "flags")) else None
        board = "/".join(text_of(folder / "device" / each) or "" for each in ("vendor", "device")).strip("/")
        yield Port(name, _known(counters), up, mbps / 1000 if mbps else None, board and f"ethernet {board}")

    @staticmethod
    def _is_card(folder: Path) -> bool:
        """Return whether an interface is a card: not virtual, not for virtual machines, not a controller's."""
        device = folder / "device"
        return device.exists() and not (device / "physfn").exists() and "/usb" not in os.path.realpath(device)


def _known(counters: Mapping[str, int | None]) -> dict[str, int]:
    return {code: value for code, value in counters.items() if value is not None}


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _is_switched_on(flags: str | None) -> bool:
    try:
        return bool(int(flags or "0", 16) & _IFF_UP)
    except ValueError:
        return False


def _gbps(rate: str | None) -> float | None:
    """Parse a rate such as `400 Gb/sec (4X NDR)`."""
    number, _, unit = (rate or "").partition(" ")
    try:
        return float(number) if unit.startswith("Gb/sec") and 0 < float(number) < 1e6 else None
    except ValueError:
        return None
