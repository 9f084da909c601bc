"""Forwarding of packets between pods and the network: settings of the node's kernel (ip-sysctl)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_IPV4: Final = "ipv4/ip_forward"
_IPV6: Final = "ipv6/conf/all/forwarding"


def enable(proc: Path, *, ipv6: bool) -> None:
    """Turn forwarding on where it is off. It stays on when the agent is removed: other programs may need it too.

    With forwarding, the kernel stops accepting router advertisements, and a node can lose its IPv6 default route. So
    interfaces that accept them are set to accept them with forwarding too (accept_ra 2).

    Args:
        proc: the node's /proc.
        ipv6: whether pods have IPv6 addresses.

    Raises:
        OSError: a setting cannot be read or written.
    """
    settings = proc / "sys/net"
    if not _is_on(settings / _IPV4):
        (settings / _IPV4).write_text("1\n")
    if ipv6 and not _is_on(settings / _IPV6):
        for interface in sorted((settings / "ipv6/conf").iterdir()):
            accepts = interface / "accept_ra"
            if interface.name not in ("all", "default", "lo") and accepts.read_text().strip() == "1":
                accepts.write_text("2\n")
        (settings / _IPV6).write_text("1\n")


def problem(proc: Path, *, ipv6: bool) -> str:
    """Return which setting was turned off since; empty if none was."""
    for name in (_IPV4, _IPV6) if ipv6 else (_IPV4,):
        try:
            on = _is_on(proc / "sys/net" / name)
        except OSError as error:
            return str(error)
        if not on:
            return f"net.{name.replace('/', '.')} is 0, so the node forwards no packets of pods; set it to 1"
    return ""


def _is_on(setting: Path) -> bool:
    return setting.read_text().strip() != "0"
