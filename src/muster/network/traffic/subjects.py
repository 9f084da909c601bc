"""What all backends check and look up about subjects."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from muster.api.socket_marks import MASK
from muster.network.traffic.backend import HOST, SUBJECT_LENGTH_MAX, TUNNEL, Subject

_ID: Final = re.compile(rf"[A-Za-z0-9._:/@+-]{{1,{SUBJECT_LENGTH_MAX}}}")


def checked(subjects: Sequence[Subject]) -> Sequence[Subject]:
    """Return the subjects.

    Raises:
        ValueError: an id, address or mark is not usable, or an id occurs twice.
    """
    seen: set[str] = set()
    for subject in subjects:
        if not _ID.fullmatch(subject.id) or subject.id in (HOST, TUNNEL):
            raise ValueError(f"subject {subject.id!r}: use 1 to {SUBJECT_LENGTH_MAX} of A-Z a-z 0-9 . _ : / @ + -")
        if subject.id in seen:
            raise ValueError(f"subject {subject.id} occurs twice")
        if subject.mark & ~MASK:
            raise ValueError(f"subject {subject.id}: mark {subject.mark:#x} has bits outside of {MASK:#x}")
        seen.add(subject.id)
        for address in subject.addresses:
            ipaddress.ip_address(address)
    return subjects


def addresses(subject: Subject) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Yield its addresses. One of IPv4 in IPv6 (::ffff:0:0/96) is an address of IPv4."""
    for address in subject.addresses:
        parsed = ipaddress.ip_address(address)
        mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
        yield mapped or parsed


def group_id(folder: Path) -> int:
    """Return the kernel's id of a control group of the unified hierarchy; 0 if it does not exist any more."""
    try:
        return folder.stat().st_ino
    except (FileNotFoundError, NotADirectoryError):
        return 0


def group_level(folder: Path, root: Path) -> int:
    """Return how many levels a control group is below the root.

    Raises:
        ValueError: it is the root, or outside of it.
    """
    level = len(folder.relative_to(root).parts)
    if not level:
        raise ValueError(f"{folder} is the root of the hierarchy: a subject needs a group below it")
    return level
