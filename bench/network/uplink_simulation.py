"""The uplink's budget in a simulated fleet of 200 nodes: how fair, how fast, and whether it is ever exceeded.

Virtual time: the figures do not depend on this machine. The network delays and loses messages, agents restart, and the
leader dies. The same run with a calm network is beside it.
"""

from __future__ import annotations

import logging
from typing import Final

from bench.report import Goal, at_least, at_most
from fuzz.uplink.run import Outcome, UplinkScenario, simulate

_SEEDS_MAX: Final = 5


def measure(repetitions: int) -> tuple[dict[str, float], list[Goal]]:
    """Return the figures and the goals: the worst of the seeds."""
    logging.disable(logging.WARNING)  # each lost connection is logged
    try:
        seeds = range(min(_SEEDS_MAX, max(1, repetitions)))
        faulty = [simulate(UplinkScenario(seed=seed)) for seed in seeds]
        calm = [simulate(UplinkScenario(seed=seed, faults=0.0, lost=0.0, deaths=0)) for seed in seeds]
    finally:
        logging.disable(logging.NOTSET)
    figures: dict[str, float] = {}
    for name, outcomes in (("faulty", faulty), ("calm", calm)):
        figures |= {f"{name}_{key}": value for key, value in _worst(outcomes).items()}
    goals = [
        at_most("traffic of 5 s, part of the budget", 1.02, figures["faulty_traffic_5s_ratio"]),
        at_most("limits of all nodes, part of the budget", 1.0, figures["faulty_limits_ratio"]),
        at_most("seconds until others use an idle share", 3.0, figures["faulty_idle_share_taken_s"]),
        at_least("used of what fair shares carry", 0.95, figures["faulty_used_ratio"]),
        at_most("violated invariants", 0, figures["faulty_violations"] + figures["calm_violations"]),
    ]
    return figures, goals


def _worst(outcomes: list[Outcome]) -> dict[str, float]:
    return {
        "violations": sum(bool(each.violation) for each in outcomes),
        "traffic_5s_ratio": round(max(each.peak for each in outcomes), 4),
        "limits_ratio": round(max(each.limits_peak for each in outcomes), 4),
        "share_error_p50_ratio": round(max(each.error_at(0.5) for each in outcomes), 4),
        "share_error_p99_ratio": round(max(each.error_at(0.99) for each in outcomes), 4),
        "idle_share_taken_s": round(
            max(each.taken_s if each.taken_s is not None else float("inf") for each in outcomes), 2
        ),
        "used_ratio": round(min(each.used for each in outcomes), 4),
    }
