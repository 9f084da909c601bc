"""Network cards on which pods with hardware addresses of their own get no packets."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_CLOUDS: Final = {"Amazon EC2": "AWS", "Microsoft Corporation": "Azure"}
_DRIVERS: Final = {"ena": "AWS", "efa": "AWS", "hv_netvsc": "Azure", "mana": "Azure"}
"""Drivers of cards that exist only there. hv_netvsc is Hyper-V's: it drops foreign addresses by default as well."""


def cloud_of(interface: str, sys: Path) -> str:
    """Return the cloud that drops frames with addresses that it did not assign: "AWS", "Azure", or "".

    AWS: "Your network interface receives only traffic for its own MAC address" (EC2, source/destination checks). Azure:
    virtual networks are layer 3 (Azure Virtual Network FAQ).

    Args:
        interface: the node's interface. If it is a bond, bridge or VLAN, the cards below it count.
        sys: the node's /sys.
    """
    for card in _cards(sys / "class/net" / interface):
        driver = (card / "device/driver").resolve().name if (card / "device/driver").exists() else ""
        if driver in _DRIVERS:
            return _DRIVERS[driver]
        if driver:
            try:
                vendor = (sys / "class/dmi/id/sys_vendor").read_text().strip()
            except OSError:
                vendor = ""
            if vendor in _CLOUDS:
                return _CLOUDS[vendor]
    return ""


def _cards(interface: Path) -> list[Path]:
    below = sorted(interface.glob("lower_*"))
    if not below:
        return [interface]
    return [card for each in below for card in _cards(interface.parent / each.name.removeprefix("lower_"))]
