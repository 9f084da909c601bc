"""Runs seeds for a set time, or one seed again: `python -m muster.sim.fuzz --help`."""

from __future__ import annotations

import argparse
import gc
import sys
import time

from muster.embedded.apiserver.request import Request
from muster.sim.fuzz.run import Outcome, run
from muster.sim.fuzz.scenario import scenario
from muster.sim.virtual.loop import START_S

AGAIN = "python -m muster.sim.fuzz --seed {seed} --trace"


def main(arguments: list[str]) -> int:
    """Return 1 where an invariant did not hold, else 0."""
    parser = argparse.ArgumentParser(prog="python -m muster.sim.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--trace", action="store_true", help="print what controllers and users asked of the API server")
    parser.add_argument("--first", type=int, default=0, help="first of many seeds (default: %(default)s)")
    parser.add_argument("--seeds", type=int, help="how many seeds; without it, as many as the time allows")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, trace=options.trace)
    return _many(options.first, options.seeds, options.seconds)


def _one(seed: int, *, trace: bool) -> int:
    drawn = scenario(seed)
    print(drawn)
    outcome = run(drawn, saw=_print if trace else None)
    print(f"{outcome.requests} requests, {outcome.steps} steps, {outcome.virtual_s:.0f} s, trace {outcome.digest}")
    print(outcome.violation or "every invariant held")
    return 1 if outcome.violation else 0


def _many(first: int, seeds: int | None, seconds: float) -> int:
    started, used = time.monotonic(), time.process_time()
    outcomes: list[Outcome] = []
    seed = first
    while seeds is None or seed < first + seeds:
        if seeds is None and time.monotonic() - started > seconds:
            break
        outcome = run(scenario(seed))
        outcomes.append(outcome)
        if outcome.violation:
            print(f"seed {seed}: {outcome.violation}\n    {AGAIN.format(seed=seed)}", flush=True)
        seed += 1
        gc.collect()  # runs leave circles behind, and collect none themselves
    used = max(time.process_time() - used, 1e-9)
    failed = sum(bool(outcome.violation) for outcome in outcomes)
    requests, steps = sum(one.requests for one in outcomes), sum(one.steps for one in outcomes)
    hours = sum(one.virtual_s for one in outcomes) / 3600
    print(
        f"{len(outcomes)} seeds from {first} on, {failed} failed; {hours:.1f} virtual hours, {requests} requests, "
        f"{steps} steps; {len(outcomes) / used:.1f} seeds, {requests / used:.0f} requests and {steps / used:.0f} steps "
        "a CPU-second"
    )
    return 1 if failed else 0


def _print(now: float, client: str, request: Request, code: int, body: bytes) -> None:
    if request.method != "GET":
        said = request.body[:300].decode(errors="replace")
        print(f"{now - START_S:9.3f} {client} {request.method} {request.path} {code} {said}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
