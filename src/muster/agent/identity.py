"""The identity of this node: its name, UID, boot and driver."""

from __future__ import annotations

import base64
import re
from typing import Any, Final

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


def node_of_token(authorization: str) -> tuple[str, str]:
    """Return (name, UID) of the node that a service account token is bound to, "" for what it does not contain.

    Tokens of pods contain it (Kubernetes: KEP-4193, claims `kubernetes.io.node`), so agents do not need the right to
    read nodes. The token is read but not verified, because the API server verifies it.
    """
    parts = authorization.removeprefix("Bearer ").split(".")
    if len(parts) != 3:
        return "", ""
    try:
        claims: Any = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=="))
        node = claims["kubernetes.io"]["node"]
        return str(node.get("name", "")), str(node.get("uid", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""


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
