"""What a cloud has to tell of a machine, whichever cloud it is.

Azure is in azure.py. What others need beside a class with `notices` is in docs/health.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Protocol, get_args

Kind = Literal["freeze", "reboot", "redeploy", "preempt", "terminate", "unknown"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class NoticeError(Exception):
    """The notices cannot be read."""


class Notice(NamedTuple):
    """One thing that will be done to the machine, or is being done."""

    identity: str
    """The cloud's own name of it: the same for as long as it is announced."""
    kind: Kind
    words: str
    """When, and why."""


class Cloud(Protocol):
    """A cloud's metadata service, seen from one of its machines."""

    def notices(self, timeout_s: float) -> Sequence[Notice]:
        """Return what is announced about this machine; it blocks.

        Raises:
            NoticeError: it is not known.
        """
