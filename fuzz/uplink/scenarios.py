"""The scenario of a seed."""

from __future__ import annotations

import random
from typing import Final

from fuzz.uplink.run import G, UplinkScenario
from muster.network.uplink.wire import Pair

_NODES: Final = (3, 10, 40)


def scenario_of(seed: int) -> UplinkScenario:
    """Return a small fleet with many faults."""
    rng = random.Random(seed)
    nodes = rng.choice(_NODES)
    return UplinkScenario(
        seed=seed,
        nodes=nodes,
        budget=Pair(nodes * rng.choice((G // 20, G // 5)), nodes * rng.choice((G // 20, G // 10))),
        churn_s=rng.choice((30.0, 90.0)),
        faults=rng.choice((0.0, 0.2, 1.0)),
        lost=rng.choice((0.0, 0.02, 0.2)),
        deaths=rng.randrange(3),
    )
