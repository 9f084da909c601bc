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
"""The cost of a check.

cheap: it reads a few files. moderate: it uses milliseconds of CPU, a program, a library or the network.
"""

S = TypeVar("S", bound=msgspec.Struct)


class Check(Protocol):
    """A check of one part of the node."""

    @property
    def name(self) -> str:
        """The name of the check. It is unique and does not change, because settings, metrics and findings use it."""

    @property
    def period_s(self) -> float:
        """The interval between two calls. The node's name shifts the calls, so that nodes do not all call at once."""

    @property
    def timeout_s(self) -> float:
        """The time after which a call counts as hung."""

    @property
    def cost(self) -> Cost:
        """The cost of a call. Only one moderate check runs at a time."""

    async def look(self, now_s: float) -> Sequence[Finding]:
        """Return what is new since the last completed call: incidents that began or grew.

        Each finding describes its incident as a whole. It replaces an earlier finding with the same check,
        component, code and `first_s`. So its count is the count of the incident, and never decreases. If an
        incident returns after a pause, it is a new incident with another `first_s` (`incidents.Incidents` does
        that). Unchanged incidents are left out.

        It must not block the event loop for more than a few milliseconds: blocking calls go through `aside.Aside.run`.
        It may be cancelled at its timeout, and is not called again before it has returned.

        Args:
            now_s: Unix seconds.
        """


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The location of the node's files. In tests and containers it differs from the usual one.

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
