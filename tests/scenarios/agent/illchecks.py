"""Checks that misbehave, as plug-ins of an agent's process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from muster.agent.aside import Aside
from muster.agent.check import Cost, Setup
from muster.fleet.health.finding import Finding


class Ill:
    """Looks every tenth of a second, and does something that no check should."""

    cost: Cost = "cheap"
    period_s = 0.1
    timeout_s = 0.2

    def __init__(self, name: str) -> None:
        self.name = name
        self._aside = Aside(name)

    async def look(self, now_s: float) -> Sequence[Finding]:
        """Do it."""
        found: Any = await self._aside.run(getattr(self, f"_{self.name}"))
        return [found]

    def _hangs(self) -> None:
        time.sleep(3600)

    def _raises(self) -> None:
        raise OSError(5, "Input/output error")

    def _leaves(self) -> None:
        raise SystemExit(3)

    def _lies(self) -> str:
        return "no finding"


def hangs(setup: Setup) -> Ill:
    """One whose call the kernel does not let go."""
    return Ill("hangs")


def raises(setup: Setup) -> Ill:
    """One that raises."""
    return Ill("raises")


def leaves(setup: Setup) -> Ill:
    """One that would end the process."""
    return Ill("leaves")


def lies(setup: Setup) -> Ill:
    """One that returns something else."""
    return Ill("lies")
