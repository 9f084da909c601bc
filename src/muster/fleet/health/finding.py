"""A finding: what a check observed. It does not contain an action."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One incident: the same fault on the same component, without a pause.

    A fault that returns after a pause is another finding with a later `first_s`, so that rules can count incidents. A
    flood of messages is one finding with a large `count`.
    """

    check: str
    """The check, such as xid, nic or disk."""
    component: str
    """The part: a GPU's PCI address or UUID, a device, or "" for the node itself."""
    code: str
    """The kind of fault. Parts after a slash add detail: 79, 154/node-reboot, fatal/20034."""
    count: int = 1
    """How often: log lines, errors of a counter, or samples above a limit."""
    first_s: float
    last_s: float
    """Unix seconds."""
    message: str = ""
    """The original text of the first one."""

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of the fault: two findings with the same key differ only in time."""
        return self.check, self.component, self.code
