"""Finds problems of file systems and disks in samples. It does not read anything itself.

Limits: the kubelet evicts pods below 10 % of space and 5 % of inodes
(kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction). Below the limits here, that did not help.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from muster.agent.checks.mounts import Mount, mount_of
from muster.agent.checks.sights import Seen, Sight
from muster.kube.counters import rise

CODES: Final = frozenset(
    {("disk", "space"), ("disk", "inodes"), ("disk", "slow"), ("disk", "stuck"), ("filesystem", "read-only")}
)
_UNCHANGING: Final = frozenset({"squashfs", "iso9660", "erofs", "cramfs", "udf"})
_VOLUMES: Final = ("/var/lib/kubelet/pods/", "/var/lib/kubelet/plugins/")
"""A pod's own volume may fail or be read-only without a fault of the node."""
_REQUESTS_MIN: Final = 10
"""With fewer requests, a mean is not meaningful."""
_LOOKS: Final = 3
_STUCK_LOOKS: Final = 2


class Limits(NamedTuple):
    """The limits beyond which something is reported."""

    space_free_share: float
    inodes_free_share: float
    slow_ms: float
    writable: tuple[str, ...]
    """Paths that must be writable, whatever their first state was."""


class Room(NamedTuple):
    """The free space and inodes of a file system. With 0 inodes, their number is not limited."""

    place: str
    size_bytes: int
    free_bytes: int
    inodes: int
    inodes_free: int


class Disk(NamedTuple):
    """Counters of /proc/diskstats: completed requests, their total duration, and those in flight."""

    done: int
    took_ms: int
    under_way: int


class Disks:
    """The disks of one node over time."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._last: Mapping[str, Disk] = {}
        self._was_writable: set[str] = set()

    def take(self, rooms: Sequence[Room], mounts: Sequence[Mount], disks: Mapping[str, Disk]) -> Seen:
        """Take the next sample."""
        states = [*self._full(rooms), *self._read_only(mounts), *self._latency(disks)]
        self._was_writable |= {mount.device for mount in mounts if not mount.super_read_only}
        self._last = disks
        return Seen(states=tuple(states))

    def _full(self, rooms: Sequence[Room]) -> Iterable[Sight]:
        for room in rooms:
            if room.free_bytes < room.size_bytes * self._limits.space_free_share:
                words = f"{room.free_bytes >> 20} MiB are free of {room.size_bytes >> 20}"
                yield Sight("disk", room.place, "space", words)
            if room.inodes_free < room.inodes * self._limits.inodes_free_share:
                yield Sight("disk", room.place, "inodes", f"{room.inodes_free} inodes are free of {room.inodes}")

    def _read_only(self, mounts: Sequence[Mount]) -> Iterable[Sight]:
        wanted = {mount.device for place in self._limits.writable if (mount := mount_of(place, mounts)) is not None}
        volumes = {mount.device for mount in mounts if mount.place.startswith(_VOLUMES)}
        reported = set[str]()
        for mount in mounts:
            if mount.device in reported or mount.kind in _UNCHANGING or not mount.super_read_only:
                continue
            # After an error, the kernel makes the file system read-only but not its mounts.
            failed = mount.source.startswith("/dev/") and (
                not mount.read_only or mount.device in self._was_writable
            )  # fmt: skip
            if mount.device in wanted or (failed and mount.device not in volumes):
                reported.add(mount.device)
                words = f"{mount.kind} on {mount.source} cannot be written to"
                yield Sight("filesystem", mount.place, "read-only", words)
        for place in self._limits.writable:
            on_it = mount_of(place, mounts)
            if on_it is not None and on_it.read_only and on_it.device not in reported:
                reported.add(on_it.device)
                yield Sight("filesystem", on_it.place, "read-only", f"{place} is mounted read-only")

    def _latency(self, disks: Mapping[str, Disk]) -> Iterable[Sight]:
        for name, disk in disks.items():
            last = self._last.get(name)
            if last is None or disk.done < last.done:  # another disk of the same name
                continue
            done, took_ms = disk.done - last.done, rise(last.took_ms, disk.took_ms, 32)
            if not done and disk.under_way and last.under_way:
                words = f"{disk.under_way} requests are under way, and none has ended since the last sample"
                yield Sight("disk", name, "stuck", words, looks=_STUCK_LOOKS)
            if done >= _REQUESTS_MIN and took_ms / done > self._limits.slow_ms:
                words = f"{done} requests took {took_ms / done:.0f} ms each"
                yield Sight("disk", name, "slow", words, looks=_LOOKS)


def disks_of(text: str) -> dict[str, Disk]:
    """Parse /proc/diskstats (Documentation/admin-guide/iostats.rst): whole disks, and devices built on them.

    Loops, RAM disks and partitions are left out. Lines in another format are skipped.
    """
    found: dict[str, Disk] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 14 or not all(each.isdigit() for each in (*fields[:2], *fields[3:14])):
            continue
        name = fields[2]
        if name.startswith(("loop", "ram", "zram", "sr", "fd")):
            continue
        reads, read_ms, writes, write_ms, under_way = (int(fields[index]) for index in (3, 6, 7, 10, 11))
        found[name] = Disk(reads + writes, (read_ms + write_ms) % (1 << 32), under_way)
    return {name: disk for name, disk in found.items() if not _is_partition(name, found)}


def _is_partition(name: str, names: Mapping[str, Disk]) -> bool:
    whole = name.rstrip("0123456789")
    return whole != name and (whole in names or (whole.endswith("p") and whole[:-1] in names))
