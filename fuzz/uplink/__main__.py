"""Runs seeds of the uplink's simulation: `python -m fuzz.uplink --seed 7`, or `--first 0 --count 100`."""

from __future__ import annotations

import argparse
import logging
import sys

from fuzz.uplink.run import UplinkScenario, simulate
from fuzz.uplink.scenarios import scenario_of


def main() -> int:
    """Run the seeds, print what each showed, and return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.uplink", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--first", type=int, default=0, help="first seed (0)")
    parser.add_argument("--count", type=int, default=10, help="number of seeds (10)")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # each lost connection is logged
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.count)
    return 1 if sum(_show(scenario_of(seed)) for seed in seeds) else 0


def _show(scenario: UplinkScenario) -> bool:
    outcome = simulate(scenario)
    taken = f"{outcome.taken_s:.1f} s" if outcome.taken_s is not None else "never"
    print(
        f"seed {scenario.seed}: {scenario.nodes} nodes, peak {outcome.peak:.1%}, limits {outcome.limits_peak:.2%}, "
        f"share error p50 {outcome.error_at(0.5):.1%} p99 {outcome.error_at(0.99):.1%}, used {outcome.used:.1%}, "
        f"idle share taken in {taken}"
    )
    if outcome.violation:
        print(f"  VIOLATED {outcome.violation}\n  again: python -m fuzz.uplink --seed {scenario.seed}")
    return bool(outcome.violation)


if __name__ == "__main__":
    sys.exit(main())
