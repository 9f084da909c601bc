"""The command line of `python -m muster.gputest`: options and exit codes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import msgspec

from muster.gputest import show
from muster.gputest.backend import check_name
from muster.gputest.drill import FAULTS
from muster.gputest.floors import Floors, load
from muster.gputest.levels import LEVELS, TESTS, plan
from muster.gputest.report import Gpu, Report
from muster.gputest.session import Session
from muster.gputest.summary import summary
from muster.gputest.verdict import below_floors, judged, slower_than_peers
from muster.gputest.wire import Rendezvous, Request, Setup

PASSED, FAILED, USAGE, NO_GPU = 0, 1, 2, 3
"""Exit codes: all passed; a test failed; wrong usage; no GPU or driver to test."""

_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "NNODES")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests and print the report. Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        requests = plan(options.level, options.test, options.budget_s)
        floors = load(options.floors)
        meeting = rendezvous(os.environ)
    except ValueError as error:
        print(f"muster.gputest: {error}", file=sys.stderr)
        return USAGE
    signal.signal(signal.SIGTERM, _terminated)
    setup = Setup(
        backend=options.backend,
        fault=options.inject or "",
        level=options.level,
        expect_gpus=options.expect_gpus,
        scratch=str(options.scratch),
        rendezvous=meeting,
    )
    progress = show.Progress()
    try:
        report, unavailable = _run(setup, requests, floors, options.node, progress)
    finally:
        progress.close()
    if options.summary is not None:
        options.summary.write_bytes(summary(report))
    print(msgspec.json.encode(report).decode() if options.output == "json" else show.text(report), flush=True)
    if unavailable:
        print(f"muster.gputest: {unavailable}", file=sys.stderr)
        return NO_GPU
    return PASSED if report.passed else FAILED


def rendezvous(environment: Mapping[str, str]) -> Rendezvous | None:
    """Return the rendezvous from torchrun's variables; None without them. Raises ValueError if only some are set."""
    given = {name: environment[name] for name in _RENDEZVOUS if name in environment}
    if not given:
        return None
    missing = set(_RENDEZVOUS) - given.keys()
    if missing:
        raise ValueError(f"the environment has {', '.join(given)}, but lacks {', '.join(sorted(missing))}")
    try:
        port, node_rank, nodes = (int(given[name]) for name in _RENDEZVOUS[1:])
    except ValueError as error:
        raise ValueError(f"the environment's MASTER_PORT, NODE_RANK and NNODES must be numbers: {error}") from error
    if not (0 < port < 1 << 16 and 0 <= node_rank < nodes):
        raise ValueError(f"the environment makes no sense: port {port}, node {node_rank} of {nodes}")
    return Rendezvous(address=given["MASTER_ADDR"], port=port, node_rank=node_rank, nodes=nodes)


def _run(
    setup: Setup, requests: tuple[Request, ...], floors: Floors, node: str, progress: show.Progress
) -> tuple[Report, str]:
    started, began = datetime.now(UTC), time.monotonic()
    session = Session(setup, progress)
    session.run(requests)
    opened, figures = session.opened, session.figures
    devices = opened.devices if opened else ()
    failures = (
        *session.failures,
        *below_floors(devices, figures, floors),
        *slower_than_peers(devices, figures, node, opened.timing_margin if opened else 0.0),
    )
    report = Report(
        node=node,
        level=setup.level,
        backend=setup.backend,
        passed=not failures,
        injected=setup.fault,
        started=started.isoformat(timespec="seconds").replace("+00:00", "Z"),
        duration_s=time.monotonic() - began,
        budget_s=sum(request.deadline_s for request in requests),
        versions=opened.versions if opened else {},
        gpus=tuple(
            Gpu(
                index=device.index,
                uuid=device.uuid,
                name=device.name,
                pci_address=device.pci_address,
                memory_bytes=device.memory_bytes,
                figures=figures.get(device.uuid, {}),
            )
            for device in devices
        ),
        node_figures=figures.get("", {}),
        tests=judged(session.tests, failures),
        failures=failures,
    )
    return report, session.unavailable


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m muster.gputest",
        description="Test this node's GPUs, which nothing else may use meanwhile.",
        epilog="Exit codes: 0 passed, 1 a test failed, 2 bad usage, 3 no GPU or driver.",
    )
    add = parser.add_argument
    add("--level", type=int, choices=sorted(LEVELS), default=1, help="1: seconds, 2: about 2 minutes, 3: about 15")
    add("-o", "--output", choices=("text", "json"), default="text", help="json: one Report on stdout")
    add("--summary", type=_file, metavar="FILE", help="the result in 4 KiB of JSON as well, as /dev/termination-log")
    add("--test", action="append", default=[], choices=TESTS, metavar="NAME", help="this test only; may be repeated")
    add("--budget-s", type=_seconds, help="seconds for all tests; their own deadlines are scaled to it")
    add("--backend", type=_backend, default="nvidia", help="nvidia, or cpu[:COUNT] to try the tests without a GPU")
    add("--expect-gpus", type=int, metavar="N", help="how many GPUs there must be; else those on the PCI bus")
    add("--floors", type=Path, metavar="FILE", help="a floors.yaml in place of the one in the package")
    add("--scratch", type=_folder, default=Path(tempfile.gettempdir()), metavar="DIR", help="where the disk is tested")
    add("--node", default=os.environ.get("NODE_NAME") or os.uname().nodename, help="name of the node in the report")
    add("--inject", choices=sorted(FAULTS), help="a drill: the last GPU gets this fault, which must be found")
    return parser


def _backend(value: str) -> str:
    wrong = check_name(value)
    if wrong:
        raise argparse.ArgumentTypeError(wrong)
    return value


def _seconds(value: str) -> float:
    seconds = float(value)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{value} is not a time to test in")
    return seconds


def _folder(value: str) -> Path:
    if not Path(value).is_dir():
        raise argparse.ArgumentTypeError(f"{value} is not a folder")
    return Path(value)


def _file(value: str) -> Path:
    _folder(str(Path(value).parent))  # reported before the tests, not after them
    return Path(value)


def _terminated(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)  # the worker is killed on the way out
