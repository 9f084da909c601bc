"""The check `nic`: error counters of InfiniBand and Ethernet ports, and links that are down, slow or gone."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from muster.agent.aside import Aside
from muster.agent.check import Cost, Setup
from muster.agent.checks.portfiles import PortFiles
from muster.agent.checks.ports import Ports
from muster.agent.checks.sights import Findings
from muster.fleet.health.finding import Finding

NAME: Final = "nic"
PERIOD_S: Final = 30.0
TIMEOUT_S: Final = 20.0


class Options(msgspec.Struct, frozen=True, rename="camel"):
    """Settings of the check.

    Attributes:
        expect: Gbit/s by pattern of port names, such as `mlx5_*/1`: these ports must be up and that fast.
        ignore: patterns of ports to skip.
    """

    expect: dict[str, float] = {}
    ignore: tuple[str, ...] = ()


class NicCheck:
    """Checks a node's network ports."""

    name = NAME
    cost: Cost = "cheap"

    def __init__(self, setup: Setup, options: Options) -> None:
        self.period_s = setup.period_s or PERIOD_S
        self.timeout_s = setup.timeout_s or TIMEOUT_S
        self._options = options
        self._files = PortFiles(setup.host.sys)
        self._ports = Ports(options.expect)
        self._findings = Findings(NAME, self.period_s)
        self._aside = Aside(NAME)  # counters are read from the card's firmware, which may hang

    async def look(self, now_s: float) -> Sequence[Finding]:
        """Read all ports once."""
        ports = await self._aside.run(self._files.read)
        ports = [port for port in ports if not any(fnmatchcase(port.name, glob) for glob in self._options.ignore)]
        return self._findings.take(self._ports.take(ports), now_s)


def make(setup: Setup) -> NicCheck:
    """Create the check even without ports: drivers of cards may be installed after the agent has started.

    Raises:
        ValueError: a setting is wrong.
    """
    return NicCheck(setup, setup.options_as(Options))
