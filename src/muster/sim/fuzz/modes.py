"""What a seed stands for: a run of the scheduler, or one of everything that works under the lease."""

from __future__ import annotations

from dataclasses import dataclass

from muster.sim.fuzz.fleet.machines import Source
from muster.sim.fuzz.fleet.run import FleetRun
from muster.sim.fuzz.fleet.scenario import fleet_scenario
from muster.sim.fuzz.run import Outcome, Saw, run
from muster.sim.fuzz.scenario import Scenario, scenario


@dataclass(frozen=True)
class Mode:
    """A way to draw runs and to carry them out.

    Attributes:
        command: runs them from a shell, with the options that make the same seed the same run.
        source: of machines and tasks; None where a run is the scheduler's alone.
    """

    command: str = "python -m muster.sim.fuzz"
    source: Source | None = None

    def draw(self, seed: int) -> Scenario:
        """Return what happens in the run."""
        return scenario(seed) if self.source is None else fleet_scenario(seed, self.source)

    def run(self, seed: int, saw: Saw | None = None) -> Outcome:
        """Carry it out."""
        return run(self.draw(seed), saw, None if self.source is None else FleetRun)
