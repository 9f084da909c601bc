"""The part `checks` of the network agent: looks at the firewalls of the node, and shows what it found."""

from __future__ import annotations

import logging
import time
from typing import Final

import msgspec

from muster.network.agent.part import Part, PartSetup
from muster.network.agent.periods import each_period
from muster.network.checks.config import ChecksConfig
from muster.network.checks.node.privileged import examine_privileged
from muster.network.checks.page import NAME, ChecksPage, SeenProblem
from muster.network.traffic.backend import BackendError

log = logging.getLogger(__name__)

_LOOP: Final = "checks"


def make_part(setup: PartSetup, config: ChecksConfig) -> Part:
    """Make the part."""
    return ChecksPart(setup, config)


class ChecksPart:
    """Checks the node once a period.

    Args:
        setup: of the agent.
        config: its section.
    """

    def __init__(self, setup: PartSetup, config: ChecksConfig) -> None:
        self._setup = setup
        self._config = config
        self.page = ChecksPage(setup.node)
        """What the last look found."""
        setup.publish(NAME, lambda: msgspec.json.encode(self.page))

    async def run(self) -> None:
        """Look once a period, until cancelled."""
        await each_period(self._setup.progress, _LOOP, self._config.period_s, self.look)

    def look(self) -> None:
        """Look once; blocking."""
        problems, unread = [], ""
        try:
            problems = examine_privileged(self._setup.paths.proc)
        except (OSError, BackendError) as error:
            unread = f"the firewalls could not be read: {error}"
            log.warning("%s", unread)
        seen = tuple(SeenProblem(each.check, each.code, each.component, each.message) for each in problems)
        self.page = ChecksPage(self._setup.node, time.time(), seen, unread)

    def remove(self) -> None:
        """Do nothing: the part changes nothing."""
