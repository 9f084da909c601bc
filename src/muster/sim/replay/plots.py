"""Draws reports as SVG or PNG: use of the cluster, and waiting times of jobs. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from muster.sim.replay.report import QueueTime, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png")
_LAYERS = (
    ("working", "#2b6cb0"),
    ("held up by a failure", "#dd6b20"),
    ("on failed nodes", "#9b2c2c"),
    ("idle while a job waits", "#ecc94b"),
)


class NoPlotting(RuntimeError):
    """Plotting is not possible because matplotlib is not installed."""


def draw(reports: Sequence[Report], path: Path) -> None:
    """Write the picture: a column for each policy. The same reports give the same file.

    Raises NoPlotting if matplotlib is not installed, and OSError if the file cannot be written.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoPlotting("plots need matplotlib") from error
    with matplotlib.rc_context({"svg.hashsalt": "muster", "font.size": 9}):
        first, several = reports[0], len(reports) > 1
        figure = Figure(figsize=(10 if not several else 6 * len(reports), 8), layout="constrained")
        columns = figure.subplots(3, len(reports), sharey="row", squeeze=False).T
        figure.suptitle(f"{first.source}: {first.jobs:,} jobs on {first.nodes:,} nodes, {first.days:g} days")
        for (use, queue, waits), report in zip(columns, reports, strict=True):
            if several:
                use.set_title(report.policy)
            _use(use, report)
            _waiting(queue, report)
            _waits(waits, report.queue)
        form = path.suffix.lower().removeprefix(".")
        figure.savefig(path, format=form, dpi=120, metadata={"Date": None} if form == "svg" else None)


def _use(axes: Axes, report: Report) -> None:
    moments = report.over_time
    hours = [each.hour / 24 for each in moments]
    layers = (
        [each.utilisation - each.stopped for each in moments],
        [each.stopped for each in moments],
        [each.down for each in moments],
        [each.idle_while_waiting for each in moments],
    )
    labels, colors = zip(*_LAYERS, strict=True)
    axes.stackplot(hours, *[[100 * value for value in layer] for layer in layers], labels=labels, colors=colors)
    axes.set(ylabel="% of all GPUs", ylim=(0, 100), xlim=(0, report.days))
    axes.legend(loc="lower right", ncols=2, fontsize=8)


def _waiting(axes: Axes, report: Report) -> None:
    days = [each.hour / 24 for each in report.over_time]
    axes.plot(days, [100 * each.waiting_gpus for each in report.over_time], color="#2b6cb0")
    axes.set(ylabel="GPUs asked for by waiting jobs,\n% of all GPUs", xlabel="days", xlim=(0, report.days))
    axes.set_ylim(bottom=0)


def _waits(axes: Axes, queue: Sequence[QueueTime]) -> None:
    started = [each for each in queue if each.p50_s is not None]
    at = range(len(started))
    for name, color in (("p50_s", "#90cdf4"), ("p90_s", "#4299e1"), ("p99_s", "#2a4365")):
        values = [max(getattr(each, name), 1.0) for each in started]
        axes.plot(at, values, "o-", color=color, label=name.removesuffix("_s"))
    axes.set(ylabel="s in the queue (1 or less at the bottom)", xlabel="GPUs", yscale="log")
    axes.set_xticks(at, [each.gpus_text for each in started])
    if started:
        axes.legend(loc="upper left", fontsize=8)
