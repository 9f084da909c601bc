"""What `muster demo` says at its end: what was lost, how long each way back took and of what that consisted."""

from __future__ import annotations

import shutil
from typing import Any

import click

from muster.api.words import counted
from muster.cli.output import paint

_STAGES = {
    "detected": ("░", "red"),
    "stopped": ("▒", "yellow"),
    "placed": ("▓", "magenta"),
    "ready": ("█", "blue"),
    "running": ("▓", "cyan"),
    "useful": ("█", "green"),
}
_BAR_MAX, _BAR_MIN = 60, 10


def print_summary(summary: dict[str, Any], slots: int) -> None:
    """Print the summary for people."""
    click.echo()
    if summary["accuracy"] is not None:
        click.echo(
            paint(f"{summary['phase']}: accuracy {summary['accuracy']:.4f} after {summary['steps']} steps", bold=True)
        )
    click.echo(
        f"{counted(summary['restarts'], 'restart')}, {counted(summary['steps_lost'], 'step')} done again, "
        f"{summary['total_s']:.0f}s in all"
    )
    longest_s = max((sum(fault["stages_s"].values()) for fault in summary["faults"]), default=0.0)
    for fault, kept in zip(summary["faults"], [*summary["slots_kept"], "?", "?"], strict=False):
        _print_fault(fault, kept, slots, longest_s)
    broken = [name.replace("_", " ") for name, kept in summary["promises"].items() if not kept and name != "all"]
    for name in broken:
        click.echo(f"  {paint('did not happen as promised:', 'red')} {name}")
    if broken and summary["message"]:
        click.echo(f"  the job says: {summary['message']}")
    if not broken:
        click.echo("\nNext: `muster up` starts a cluster that stays; `muster run train.py --follow` trains on it.")


def _print_fault(fault: dict[str, Any], kept: object, slots: int, longest_s: float) -> None:
    useful = fault["time_to_useful_s"]
    click.echo(
        f"\n{paint(fault['what'] or fault['rule'], bold=True)}: attempt {fault['attempt']} ended "
        f"at slot {fault['slot']} on {fault['node']} ({fault['cause']}, {fault['rule']})"
    )
    click.echo(
        f"  {kept} of {slots} slots kept, {counted(fault['steps_lost'] or 0, 'step')} done again, useful again after "
        + (f"{useful:.1f}s" if useful is not None else "?")
    )
    width = min(_BAR_MAX, shutil.get_terminal_size().columns - 4)
    if width >= _BAR_MIN and longest_s > 0:
        click.echo(f"  {stage_bar(fault['stages_s'], longest_s, width)}")
    legend = [
        paint(f"{_STAGES[name][0]} {name} {took:.2f}s", _STAGES[name][1]) for name, took in fault["stages_s"].items()
    ]
    click.echo(f"  {'  '.join(legend)}")


def stage_bar(stages_s: dict[str, float], longest_s: float, width: int) -> str:
    """The stages one after the other, as long as they took; `longest_s` would fill `width`."""
    bar, passed_s, drawn = "", 0.0, 0
    for name, took_s in stages_s.items():
        passed_s += took_s
        end = round(width * passed_s / longest_s)
        sign, color = _STAGES[name]
        bar += paint(sign * (end - drawn), color)
        drawn = end
    return bar
