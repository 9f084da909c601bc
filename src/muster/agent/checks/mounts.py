"""What is mounted where: lines of /proc/PID/mountinfo, proc_pid_mountinfo(5)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final, NamedTuple

_READ_ONLY: Final = frozenset({"ro", "emergency_ro", "shutdown"})
"""The last two are what newer kernels say of ext4 after an error."""
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One mount."""

    device: str
    """MAJOR:MINOR of the file system: mounts of the same one have the same."""
    place: str
    kind: str
    """ext4, xfs, tmpfs, ..."""
    source: str
    read_only: bool
    """This mount of it; somebody wants it so."""
    super_read_only: bool
    """All of the file system: somebody made it so, or the kernel after an error."""


def mounts_of(text: str) -> list[Mount]:
    """Read a mountinfo; lines that are none are passed over."""
    found = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 3:
            continue
        place, source = (_ESCAPED.sub(lambda match: chr(int(match[1], 8)), each) for each in (fields[4], rest[1]))
        found.append(Mount(fields[2], place, rest[0], source, _is_ro(fields[5]), _is_ro(rest[2])))
    return found


def mount_of(place: str, mounts: Sequence[Mount]) -> Mount | None:
    """Return the mount that a path is on: the innermost, and of several at one place the last."""
    path = PurePosixPath(place)
    on_it = [mount for mount in mounts if path.is_relative_to(mount.place)]
    return max(reversed(on_it), key=lambda mount: len(PurePosixPath(mount.place).parts), default=None)


def _is_ro(options: str) -> bool:
    return not _READ_ONLY.isdisjoint(options.split(","))
