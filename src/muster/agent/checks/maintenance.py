"""The check `maintenance`: reads the cloud's notices about this machine.

It never acknowledges a notice: that lets the cloud begin sooner, and is up to the operator who has drained the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from muster.agent.aside import Aside
from muster.agent.check import Cost, Setup
from muster.agent.checks.azure import ADDRESS, AzureEvents, is_azure
from muster.agent.checks.cloud import KINDS, Cloud, NoticeError
from muster.agent.checks.sights import Findings, Seen, Sight
from muster.fleet.health.finding import Finding

NAME: Final = "maintenance"
PERIOD_S: Final = 15.0
"""Azure announces an eviction at least half a minute before it."""
TIMEOUT_S: Final = 130.0
"""Azure may take two minutes for the first answer: it enables the service for the machine."""
CODES: Final = frozenset({(NAME, code) for code in (*KINDS, "unreadable")})
_LOOKS: Final = 4


class Options(msgspec.Struct, frozen=True, rename="camel"):
    """Settings of the check.

    Attributes:
        cloud: the cloud; `auto` detects it from the firmware, and may find none.
        address: of the cloud's metadata service, if it is not the default.
        machine: this machine's name in the notices; empty to ask the metadata service.
    """

    cloud: Literal["auto", "azure", "none"] = "auto"
    address: Annotated[str, msgspec.Meta(pattern=r"^http://")] = ADDRESS
    machine: str = ""


class MaintenanceCheck:
    """Reads a cloud's notices."""

    name = NAME
    cost: Cost = "cheap"  # it mostly waits, and must not delay other checks

    def __init__(self, setup: Setup, cloud: Cloud) -> None:
        self.period_s = setup.period_s or PERIOD_S
        self.timeout_s = setup.timeout_s or TIMEOUT_S
        self._cloud = cloud
        self._findings = Findings(NAME, self.period_s)
        self._aside = Aside(NAME)

    async def look(self, now_s: float) -> Sequence[Finding]:
        """Read all notices once."""
        try:
            notices = await self._aside.run(self._cloud.notices, self.timeout_s - 5.0)
        except NoticeError as error:
            states: tuple[Sight, ...] = (Sight(NAME, "", "unreadable", str(error), looks=_LOOKS),)
        else:
            states = tuple(Sight(NAME, each.identity, each.kind, each.words) for each in notices)
        return self._findings.take(Seen(states=states), now_s)


def make(setup: Setup) -> MaintenanceCheck | None:
    """Create the check if the machine is in a supported cloud.

    Raises:
        ValueError: a setting is wrong.
    """
    options = setup.options_as(Options)
    if options.cloud == "none" or (options.cloud == "auto" and not is_azure(Path(setup.host.sys))):
        return None
    return MaintenanceCheck(setup, AzureEvents(options.address, options.machine))
