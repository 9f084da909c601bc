"""What a check is: something that looks at the node every so often and says what it saw.

A check never writes, acts or judges; it says findings, and the policy says what they mean. One that hangs, raises or
cannot be made is a finding of the check `agent` (component: its name) and never stops another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import msgspec

from muster.fleet.health.finding import Finding

Cost = Literal["cheap", "moderate"]
"""cheap: a few files are read. moderate: milliseconds of CPU, a program, a library or the network."""

S = TypeVar("S", bound=msgspec.Struct)


class Check(Protocol):
    """One thing that is looked at."""

    @property
    def name(self) -> str:
        """Unique among checks, and stable: settings, metrics and findings about the check itself go by it."""

    @property
    def period_s(self) -> float:
        """Looks begin so far apart, shifted by the node's name so that the fleet does not look at once."""

    @property
    def timeout_s(self) -> float:
        """A look that takes longer has hung."""

    @property
    def cost(self) -> Cost:
        """What a look costs; of the moderate ones only one runs at a time."""

    async def look(self, now_s: float) -> Sequence[Finding]:
        """Return what is new since the last look that returned: incidents that began, and incidents that grew.

        Each is whole: a finding with the check, component, code and `first_s` of an earlier one takes its place, so its
        count is that of the incident and never goes down. Incidents are never merged: what returns after a pause has a
        `first_s` of its own (`incidents.Incidents` does that for whoever counts). What did not change is left out.

        It must not block the event loop for more than a few milliseconds: what may block goes through
        `aside.Aside.run`. It may be cancelled at its timeout, and is not called again before it has returned.

        Args:
            now_s: Unix seconds.
        """


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """Where the node's files are: tests and containers have them elsewhere.

    Attributes:
        sys, proc, dev: the kernel's file systems.
        root: the node's root file system, for anything else, such as `root / "var/log"`.
    """

    root: Path = Path("/")
    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What a check is made from by `make(setup) -> Check | None`, which checks/__init__.py names.

    None: this node has nothing of the kind (no InfiniBand, no GPU), so there is nothing to look at. `make` raises
    ValueError where a setting is wrong; it does not block and does not look yet.

    Attributes:
        node: name of the node.
        host: where its files are.
        period_s, timeout_s: as set for this check; None: the check's own.
        options: the check's own settings as JSON.
    """

    node: str
    host: Host = Host()
    period_s: float | None = None
    timeout_s: float | None = None
    options: msgspec.Raw = msgspec.Raw(b"{}")

    def options_as(self, kind: type[S]) -> S:
        """Decode the options; fields that are not known are ignored, so settings may be newer than the agent.

        Raises:
            ValueError: they do not fit (msgspec.ValidationError names the field).
        """
        return msgspec.json.decode(self.options, type=kind)
