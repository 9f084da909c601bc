"""Further events of a run with node health: dead machines, partitions, requests of operators, and pools."""

from __future__ import annotations

import random

import msgspec

from fuzz.fleet.clouds import CloudWeather
from fuzz.health.mishaps import LAST_WOUND_S, REPLACES, Cut, Habits, Plea, Wound
from fuzz.roads import RoadWeather
from fuzz.weather import Window
from muster.sim.virtual.loop import START_S

LAST_PLEA_S = 400.0


class More:
    """Draw further events. A third of all runs have none. A separate source keeps the other draws unchanged."""

    def __init__(self, rng: random.Random, nodes: int) -> None:
        self._rng, self._nodes = rng, nodes
        some = rng.random() < 2 / 3

        def often(share: float) -> bool:
            return rng.random() < share and some

        self.pools = ("a", "b") if often(0.3) else ("",)
        self.teams = ("red", "blue", "") if often(0.3) else ("red", "")
        self.racks = often(0.4)
        self.dead = rng.choice((1, 2, 3))
        self.vendor = frozenset(rng.sample(range(nodes), rng.randint(nodes // 2, nodes))) if often(0.6) else frozenset()
        self.wounds = self._deaths() if often(0.5) else []
        self.cuts = (self._cut(),) if often(0.4) else ()
        self.pleas = tuple(self._pleas()) if often(0.4) else ()
        self.asking = CloudWeather(
            calm_at=START_S + LAST_WOUND_S,
            throttled=rng.choice((0.0, 0.3)),
            unanswered=rng.choice((0.0, 0.2)),
            late=rng.choice((0.0, 0.5)),
        )
        self.retests = often(0.2)

    @property
    def lost(self) -> set[int]:
        """Nodes that gangs may have to do without."""
        return {wound.node for wound in self.wounds} | {plea.node for plea in self.pleas}

    def known(self, habits: tuple[Habits, ...]) -> tuple[Habits, ...]:
        """Add how machines are replaced."""
        rng = self._rng
        return tuple(
            msgspec.structs.replace(
                each, off_s=rng.uniform(0, 20), replaced_s=rng.uniform(0, 60), same_name=rng.random() < 0.5
            )
            for each in habits
        )

    def _deaths(self) -> list[Wound]:
        """Machines that stop for good, or whose agents report that they must be replaced."""
        rng, found = self._rng, []
        for node in rng.sample(range(self._nodes), rng.choice((1, 1, 2))):
            kind = rng.choice(("dies", "dies", "fault", "alarm"))
            found.append(Wound(kind, node, rng.uniform(1, LAST_WOUND_S), REPLACES, "", rng.uniform(0, 10)))
        return found

    def _cut(self) -> Cut:
        rng = self._rng
        size = rng.choice((1, 2, self._nodes // 2, self._nodes // 2, self._nodes - 2, self._nodes))
        first = rng.randrange(self._nodes)
        neighbours = [(first + number) % self._nodes for number in range(size)]
        nodes = rng.choice((neighbours, rng.sample(range(self._nodes), size)))
        at = rng.uniform(20, LAST_WOUND_S)
        kind = rng.choice(("island", "island", "deaf", "shunned"))
        return Cut(kind, tuple(sorted(nodes)), at, at + rng.uniform(10, 120))

    def _pleas(self) -> list[Plea]:
        """Operators take nodes out of use. Later they let them back, or forget them."""
        rng, found = self._rng, []
        for node in rng.sample(range(self._nodes), rng.choice((1, 1, 2, 3))):
            at = rng.uniform(1, LAST_WOUND_S)
            if rng.random() < 0.7:
                found.append(Plea("Quarantine", node, at))
            if rng.random() < 0.7:
                found.append(Plea("Release", node, rng.uniform(at, LAST_PLEA_S)))
        return sorted(found, key=lambda plea: plea.at)


def cut_off(roads: RoadWeather, cuts: tuple[Cut, ...]) -> RoadWeather:
    """Supervisors on nodes that are cut off reach no controller."""
    dark = {
        f"node-{number:05d}": Window(START_S + cut.at, START_S + cut.end)
        for cut in cuts
        if cut.kind != "shunned"
        for number in cut.nodes
    }
    return msgspec.structs.replace(roads, dark={**roads.dark, **dark})
