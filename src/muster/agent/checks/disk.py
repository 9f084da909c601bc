"""The check `disk`: free space, inodes, read-only file systems, and slow or stuck disks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from muster.agent.aside import Aside
from muster.agent.check import Cost, Host, Setup
from muster.agent.checks.disks import Disk, Disks, Limits, Room, disks_of
from muster.agent.checks.mounts import Mount, mount_of, mounts_of
from muster.agent.checks.sights import Findings
from muster.fleet.health.finding import Finding
from muster.kube.smallfiles import text_of

NAME: Final = "disk"
PERIOD_S: Final = 30.0
TIMEOUT_S: Final = 20.0
_FILE_BYTES_MAX: Final = 4 << 20

Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]


class Options(msgspec.Struct, frozen=True, rename="camel"):
    """Settings of the check.

    Attributes:
        places: paths on the node whose file systems must not be full; missing ones are left out.
        writable: paths that must be writable even if they were not when the agent started.
        space_free_percent, inodes_free_percent: the limits; less than this is reported.
        slow_ms: the limit for the mean duration of a disk's requests in one period.
    """

    places: tuple[str, ...] = ("/", "/var/lib/kubelet", "/var/lib/containerd", "/var/lib/docker", "/tmp", "/var/log")
    writable: tuple[str, ...] = ("/var/lib/kubelet",)
    space_free_percent: Percent = 5.0
    inodes_free_percent: Percent = 3.0
    slow_ms: Annotated[float, msgspec.Meta(gt=0)] = 500.0


class DiskCheck:
    """Checks a node's file systems and disks."""

    name = NAME
    cost: Cost = "cheap"

    def __init__(self, setup: Setup, options: Options) -> None:
        self.period_s = setup.period_s or PERIOD_S
        self.timeout_s = setup.timeout_s or TIMEOUT_S
        self._host = setup.host
        self._options = options
        self._disks = Disks(
            Limits(
                options.space_free_percent / 100, options.inodes_free_percent / 100, options.slow_ms, options.writable
            )
        )
        self._findings = Findings(NAME, self.period_s)
        self._aside = Aside(NAME)  # a file system whose disk or server is gone blocks the caller

    async def look(self, now_s: float) -> Sequence[Finding]:
        """Check all file systems and disks once."""
        rooms, mounts, disks = await self._aside.run(self._read)
        return self._findings.take(self._disks.take(rooms, mounts, disks), now_s)

    def _read(self) -> tuple[list[Room], list[Mount], dict[str, Disk]]:
        mounts = mounts_of(_mountinfo(self._host))
        rooms: dict[str, Room] = {}
        for place in self._options.places:
            mount = mount_of(place, mounts)
            room = room_of(self._host.root, place)
            if mount is not None and room is not None:
                rooms.setdefault(mount.device, room._replace(place=mount.place))
        return list(rooms.values()), mounts, disks_of(text_of(self._host.proc / "diskstats", _FILE_BYTES_MAX) or "")


def room_of(root: Path, place: str) -> Room | None:
    """Return how full the file system of a path is; None if the path does not exist."""
    try:
        found = os.statvfs(root / place.lstrip("/"))
    except OSError:
        return None
    # Reserved space for root counts neither as free nor as part of the size.
    usable = found.f_blocks - found.f_bfree + found.f_bavail
    return Room(place, usable * found.f_frsize, found.f_bavail * found.f_frsize, found.f_files, found.f_favail)


def _mountinfo(host: Host) -> str:
    """Return the mounts of the node's first process; the agent's own mounts if those are not readable."""
    for process in ("1", "self"):
        text = text_of(host.proc / process / "mountinfo", _FILE_BYTES_MAX)
        if text:
            return text
    return ""


def make(setup: Setup) -> DiskCheck:
    """Create the check.

    Raises:
        ValueError: a setting is wrong.
    """
    return DiskCheck(setup, setup.options_as(Options))
