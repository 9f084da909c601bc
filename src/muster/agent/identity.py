"""The identity of this node: its name, UID, boot and driver."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from muster.agent.check import Host

_DRIVER: Final = re.compile(r"Kernel Module(?: for \S+)? +([\d.]+)")
_VERSION_MAX: Final = 64


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The boot ID, driver version and number of GPUs that the kernel reports."""

    boot_id: str = ""
    driver: str = ""
    gpus: int = 0


def boot_id(host: Host) -> str:
    """Return the ID of this boot, "" if the kernel does not report it. Never blocks."""
    return _text(host, "sys/kernel/random/boot_id").strip()


def facts(host: Host) -> Facts:
    """Read the facts; missing ones are empty. Blocking, because a faulty driver may not respond."""
    return Facts(boot_id=boot_id(host), driver=_driver(host), gpus=_gpus(host))


def _driver(host: Host) -> str:
    """Return the version in /proc/driver/nvidia/version (NVRM version: ... Kernel Module  570.86.15 ...)."""
    found = _DRIVER.search(_text(host, "driver/nvidia/version"))
    return found[1][:_VERSION_MAX] if found else ""


def _gpus(host: Host) -> int:
    """Return the number of GPUs: the driver has a folder for each."""
    try:
        return sum(1 for _ in (host.proc / "driver/nvidia/gpus").iterdir())
    except OSError:
        return 0


def _text(host: Host, name: str) -> str:
    try:
        with (host.proc / name).open("rb") as file:
            return file.read(4096).decode(errors="replace")
    except OSError:
        return ""
