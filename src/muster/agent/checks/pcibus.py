"""Finds NVIDIA GPUs on the PCI bus, with or without a driver: sysfs-bus-pci."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from muster.agent.checks.files import names_in, text_of

_VENDOR: Final = "0x10de"
_CLASSES: Final = ("0x0300", "0x0302")
"""VGA and 3D controllers."""
_GONE: Final = b"\xff\xff"
_ELSEWHERE: Final = ("vfio-pci", "pci-stub")
"""Drivers of GPUs that are passed to virtual machines."""


def gpus_on_bus(sys: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the addresses of (GPUs for NVIDIA's driver, those among them that no longer respond)."""
    bus = sys / "bus/pci/devices"
    found, silent = [], []
    for name in names_in(bus):
        device = bus / name
        if text_of(device / "vendor") != _VENDOR or not (text_of(device / "class") or "").startswith(_CLASSES):
            continue
        if os.path.basename(os.path.realpath(device / "driver")) in _ELSEWHERE:
            continue
        found.append(name.lower())
        try:
            with (device / "config").open("rb", buffering=0) as config:
                if config.read(len(_GONE)) == _GONE:  # a read returns all ones if the device does not respond
                    silent.append(name.lower())
        except OSError:
            continue  # not readable: the state is not known
    return tuple(found), tuple(silent)
