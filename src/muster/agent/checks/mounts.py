"""Parses mounts: lines of /proc/PID/mountinfo, proc_pid_mountinfo(5)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final, NamedTuple

_READ_ONLY: Final = frozenset({"ro", "emergency_ro", "shutdown"})
"""Newer kernels show the last two for ext4 after an error."""
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One mount."""

    device: str
    """MAJOR:MINOR of the file system, the same for all of its mounts."""
    place: str
    kind: str
    """ext4, xfs, tmpfs, ..."""
    source: str
    read_only: bool
    """Whether this mount is read-only, as its options say."""
    super_read_only: bool
    """Whether the whole file system is read-only: set by an operator, or by the kernel after an error."""


def mounts_of(text: str) -> list[Mount]:
    """Parse a mountinfo file. Lines in another format are skipped."""
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
    """Return the mount of a path: the innermost, and the last if several are at one place."""
    path = PurePosixPath(place)
    on_it = [mount for mount in mounts if path.is_relative_to(mount.place)]
    return max(reversed(on_it), key=lambda mount: len(PurePosixPath(mount.place).parts), default=None)


def _is_ro(options: str) -> bool:
    return not _READ_ONLY.isdisjoint(options.split(","))
