"""A block: one account may not use the API server until a moment."""

from __future__ import annotations

from typing import Final

import msgspec

from muster.doctor.block.account import Account

LEVEL: Final = "muster-break-glass"
"""The priority level of blocked accounts. The chart creates it."""


class Block(msgspec.Struct, frozen=True):
    """A block.

    Attributes:
        object_name: name of its FlowSchema.
        uid: UID of the FlowSchema.
        version: resourceVersion of the FlowSchema.
        account: the blocked account; None if the FlowSchema was changed to another subject.
        expires_at: when it ends, in seconds since 1970; 0 if the annotation is missing or not valid.
        level: name of its priority level.
    """

    object_name: str
    uid: str
    version: str
    account: Account | None
    expires_at: float
    level: str = LEVEL
