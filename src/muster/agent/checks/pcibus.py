"""NVIDIA GPUs on the PCI bus, whether or not their driver knows them: sysfs-bus-pci."""

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
"""GPUs that are handed to virtual machines."""


def gpus_on_bus(sys: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the addresses of (GPUs that are meant for NVIDIA's driver, those of them that no longer answer)."""
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
                if config.read(len(_GONE)) == _GONE:  # a bus reads as ones where nobody answers
                    silent.append(name.lower())
        except OSError:
            continue  # may not be read: nothing is known
    return tuple(found), tuple(silent)
