"""The interface to a cloud's notices about a machine.

Azure is in azure.py. docs/health.md says what other clouds need in addition to a class with `notices`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Protocol, get_args

Kind = Literal["freeze", "reboot", "redeploy", "preempt", "terminate", "unknown"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class NoticeError(Exception):
    """The notices cannot be read."""


class Notice(NamedTuple):
    """An announced or running operation of the cloud on the machine."""

    identity: str
    """The cloud's ID for it, which stays the same while it is announced."""
    kind: Kind
    words: str
    """The time and the reason."""


class Cloud(Protocol):
    """A cloud's metadata service, read from one of its machines."""

    def notices(self, timeout_s: float) -> Sequence[Notice]:
        """Return the notices for this machine. Blocking.

        Raises:
            NoticeError: they could not be read.
        """
