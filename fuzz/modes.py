"""The kind of a seed's run: of the scheduler, of the fleet's controllers, or with node health."""

from __future__ import annotations

from dataclasses import dataclass

from fuzz.fleet.machines import Source
from fuzz.fleet.run import FleetRun
from fuzz.fleet.scenario import fleet_scenario
from fuzz.health.run import HealthRun
from fuzz.health.scenario import health_scenario
from fuzz.run import Outcome, Saw, run
from fuzz.scenario import Scenario, restoring_scenario, scenario


@dataclass(frozen=True)
class Mode:
    """A way to draw runs and to carry them out.

    Attributes:
        command: runs them from a shell, with the options that make the same seed the same run.
        source: of machines and tasks; None for runs without the fleet's controllers.
        health: a run with remediation and preflight.
        restoring: a run of training jobs whose ranks agree on the checkpoint that they restore.
    """

    command: str = "python -m fuzz"
    source: Source | None = None
    health: bool = False
    restoring: bool = False

    def draw(self, seed: int) -> Scenario:
        """Return what happens in the run."""
        if self.health:
            return health_scenario(seed)
        if self.restoring:
            return restoring_scenario(seed)
        return scenario(seed) if self.source is None else fleet_scenario(seed, self.source)

    def run(self, seed: int, saw: Saw | None = None) -> Outcome:
        """Carry it out."""
        kind = HealthRun if self.health else FleetRun if self.source is not None else None
        return run(self.draw(seed), saw, kind)
