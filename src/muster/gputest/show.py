"""Shows a run on a terminal: a progress line and the report as text."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator

from muster.gputest.report import Report
from muster.gputest.wire import Event, Request, Said

_REDRAW_S = 0.1
_COLOURS = {"passed": "32", "skipped": "33"}


class Progress:
    """A progress line on stderr if that is a terminal: the test and its last event."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._drawn = 0.0

    def __call__(self, request: Request, event: Event) -> None:
        """Show an event."""
        now = time.monotonic()
        if not self._shown or not isinstance(event, Said) or now - self._drawn < _REDRAW_S:
            return
        self._drawn = now
        width = shutil.get_terminal_size().columns - 1
        line = f"{request.test}: {event.gpu} {event.text}".replace("  ", " ")
        print(f"\r{line[:width]:<{width}}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line."""
        if self._drawn:
            print(f"\r{'':<{shutil.get_terminal_size().columns - 1}}\r", end="", file=sys.stderr, flush=True)


def text(report: Report) -> str:
    """Format the report for people, in color on a terminal unless NO_COLOR is set."""
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return "\n".join(_lines(report, colour))


def _lines(report: Report, colour: bool) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    yield f"{report.node}: level {report.level} on {len(report.gpus)} GPUs ({versions or report.backend})"
    if report.injected:
        yield f"A DRILL: {report.injected} was injected; this says nothing about the node."
    for test in report.tests:
        outcome = f"{test.outcome:<8}"
        if colour:
            outcome = f"\033[{_COLOURS.get(test.outcome, '31')}m{outcome}\033[0m"
        reason = f"  {test.message}" if test.outcome == "skipped" else ""
        yield f"  {outcome} {test.name:<18} {test.duration_s:7.1f} s{reason}"
    for gpu in report.gpus:
        yield f"GPU {gpu.index} {gpu.name} {gpu.uuid} {gpu.pci_address}"
        yield from _figures(gpu.figures)
    if report.node_figures:
        yield "node"
        yield from _figures(report.node_figures)
    for failure in report.failures:
        yield f"FAILED {failure.test}: {failure.code}" + (f" on {failure.gpu}" if failure.gpu else "")
        yield f"  {failure.message}"
        yield f"  {failure.remedy}"
    yield f"{'passed' if report.passed else 'FAILED'} in {report.duration_s:.1f} s (budget {report.budget_s:.0f} s)"


def _figures(figures: dict[str, float]) -> Iterator[str]:
    for name, value in figures.items():
        yield f"  {name:<38} {value:12.5g}"
