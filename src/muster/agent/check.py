"""The interface of checks: a check reads the state of the node at intervals and returns findings.

A check does not write, act or judge: the policy decides what findings mean. If a check hangs, raises or cannot be
created, that is a finding of the check `agent` (component: its name), and other checks continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import msgspec

from muster.fleet.health.finding import Finding

Cost = Literal["cheap", "moderate"]
"""cheap: reads a few files. moderate: milliseconds of CPU, a program, a library or the network."""

S = TypeVar("S", bound=msgspec.Struct)


class Check(Protocol):
    """A check of one part of the node."""

    @property
    def name(self) -> str:
        """Unique among checks, and stable: settings, metrics and findings about the check use it."""

    @property
    def period_s(self) -> float:
        """The interval between starts, shifted by the node's name so that not all nodes start at once."""

    @property
    def timeout_s(self) -> float:
        """A call that takes longer counts as hung."""

    @property
    def cost(self) -> Cost:
        """The cost of a call. Only one moderate check runs at a time."""

    async def look(self, now_s: float) -> Sequence[Finding]:
        """Return what is new since the last completed call: incidents that began or grew.

        Each finding is complete. It replaces an earlier finding with the same check, component, code and `first_s`, so
        its count is that of the incident and never decreases. Incidents are never merged: one that returns after a
        pause has another `first_s` (`incidents.Incidents` does that). Unchanged incidents are left out.

        It must not block the event loop for more than a few milliseconds: blocking calls go through `aside.Aside.run`.
        It may be cancelled at its timeout, and is not called again before it has returned.

        Args:
            now_s: Unix seconds.
        """


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """Where the node's files are: in tests and containers they are elsewhere.

    Attributes:
        sys, proc, dev: the kernel's file systems.
        root: the node's root file system, for all other files, such as `root / "var/log"`.
    """

    root: Path = Path("/")
    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The input of `make(setup) -> Check | None`, which checks/__init__.py names for each check.

    None means that the node does not have such hardware (no InfiniBand, no GPU). `make` raises ValueError if a setting
    is wrong. It does not block and does not run the check.

    Attributes:
        node: name of the node.
        host: the location of its files.
        period_s, timeout_s: settings for this check; None for the check's defaults.
        options: other settings of the check, as JSON.
    """

    node: str
    host: Host = Host()
    period_s: float | None = None
    timeout_s: float | None = None
    options: msgspec.Raw = msgspec.Raw(b"{}")

    def options_as(self, kind: type[S]) -> S:
        """Decode the options. Unknown fields are ignored, so settings may be newer than the agent.

        Raises:
            ValueError: a field is invalid (msgspec.ValidationError names it).
        """
        return msgspec.json.decode(self.options, type=kind)
