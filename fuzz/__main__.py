"""Runs many seeds, or one again: `python -m fuzz --help`. With `--json`, the last line is JSON."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from fuzz.fleet.machines import own_source, read_source
from fuzz.many import Finding, Summary, many
from fuzz.modes import Mode
from muster.embedded.apiserver.request import Request
from muster.sim.replay.table import BadTrace
from muster.sim.virtual.loop import START_S


def main(arguments: list[str]) -> int:
    """Return 1 if an invariant did not hold, else 0."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--trace", action="store_true", help="print what controllers and users asked of the API server")
    parser.add_argument("--first", type=int, default=0, help="first of many seeds (default: %(default)s)")
    parser.add_argument("--seeds", type=int, help="how many seeds; without it, as many as the time allows")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side (default: %(default)s)")
    parser.add_argument("--kept", type=Path, help="file for a line a seed; seeds in it are not run again")
    parser.add_argument("--json", action="store_true", help="print the summary as one line of JSON at the end")
    parser.add_argument("--fleet", action="store_true", help="teams, balloons, joins and scaling beside the scheduler")
    parser.add_argument("--health", action="store_true", help="remediation and preflight beside the scheduler")
    parser.add_argument("--restoring", action="store_true", help="training jobs with damaged checkpoints")
    parser.add_argument("--nodes-from", type=Path, help="draw the nodes of such runs from a node list of OpenB's form")
    parser.add_argument("--pods-from", type=Path, help="draw what they ask for from a trace (see docs/simulate.md)")
    options = parser.parse_args(arguments)
    if bool(options.nodes_from) != bool(options.pods_from) or (options.nodes_from and not options.fleet):
        parser.error("--nodes-from and --pods-from belong together, and to --fleet")
    if options.health + options.fleet + options.restoring > 1:
        parser.error("--health, --fleet and --restoring are different runs")
    try:
        mode = _mode(options)
    except BadTrace as error:
        parser.error(str(error))
    if options.seed is not None:
        return _one(mode, options.seed, trace=options.trace)
    for came in many(options.first, options.seeds, options.seconds, options.jobs, options.kept, mode):
        if isinstance(came, Finding):
            print(f"seed {came.seed}: {came.violation}\n    {came.again}", flush=True)
            continue
        _say(came)
        if options.json:
            print(msgspec.json.encode({"fuzz": came}).decode())
        return 1 if came.findings else 0
    raise AssertionError("there is always a summary")


def _say(came: Summary) -> None:
    used = max(came.cpu_s, 1e-9)
    print(
        f"{came.seeds} seeds from {came.first} on, {len(came.findings)} failed; {came.events} events, "
        f"{came.requests} requests, {came.virtual_hours} virtual hours; {came.cpu_s:.0f} CPU-seconds in "
        f"{came.wall_s:.0f} s: {came.seeds / used:.1f} seeds and {came.events / used:.0f} events a CPU-second"
    )


def _mode(options: argparse.Namespace) -> Mode:
    if options.health:
        return Mode("python -m fuzz --health", health=True)
    if options.restoring:
        return Mode("python -m fuzz --restoring", restoring=True)
    if not options.fleet:
        return Mode()
    if options.nodes_from is None:
        return Mode("python -m fuzz --fleet", own_source())
    command = f"python -m fuzz --fleet --nodes-from {options.nodes_from} --pods-from {options.pods_from}"
    return Mode(command, read_source(options.nodes_from, options.pods_from))


def _one(mode: Mode, seed: int, *, trace: bool) -> int:
    print(mode.draw(seed))
    outcome = mode.run(seed, saw=_print if trace else None)
    print(f"{outcome.requests} requests, {outcome.steps} events, {outcome.virtual_s:.0f} s, trace {outcome.digest}")
    print(outcome.violation or "every invariant held")
    return 1 if outcome.violation else 0


def _print(now: float, client: str, request: Request, code: int, body: bytes) -> None:
    if request.method != "GET":
        said = request.body[:300].decode(errors="replace")
        print(f"{now - START_S:9.3f} {client} {request.method} {request.path} {code} {said}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
