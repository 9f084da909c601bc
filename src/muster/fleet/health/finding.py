"""What a check saw: an observation, never an action."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One incident: the same thing seen on the same component, without a pause.

    What returns after a pause is another finding with a later `first_s`, so that rules can count incidents; a flood
    is one finding with a large `count`.
    """

    check: str
    """What looked, such as xid, nic or disk."""
    component: str
    """The part: a GPU's PCI address or UUID, a device, or "" for the node itself."""
    code: str
    """What it was; parts after a slash say more: 79, 154/node-reboot, fatal/20034."""
    count: int = 1
    """How often: lines of a log, errors of a counter, samples above a limit."""
    first_s: float
    last_s: float
    """Unix seconds."""
    message: str = ""
    """The first of it, in its own words."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes two findings the same thing seen at different times."""
        return self.check, self.component, self.code
