"""The page `/v1/checks` of the network agent: problems that only a privileged process sees."""

from __future__ import annotations

from typing import Final

import msgspec

NAME: Final = "checks"


class SeenProblem(msgspec.Struct, frozen=True):
    """A problem of the node; see `Problem`."""

    check: str
    code: str
    component: str
    message: str


class ChecksPage(msgspec.Struct, frozen=True):
    """What the last look found.

    Attributes:
        node: name of the node.
        taken_s: when it looked, Unix seconds; 0 before the first look.
        problems: what it found.
        unread: why something could not be read; "" if nothing failed.
    """

    node: str
    taken_s: float = 0.0
    problems: tuple[SeenProblem, ...] = ()
    unread: str = ""
