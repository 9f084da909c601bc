"""The summary of `muster demo`: what was lost, how long each recovery took, and its stages."""

from __future__ import annotations

import shutil
from typing import Any

import click

from muster.api.words import counted
from muster.cli.output import paint, say, text_width

_STAGES = {
    "detected": ("░", "red"),
    "stopped": ("▒", "yellow"),
    "backoff": ("·", "white"),
    "placed": ("▓", "magenta"),
    "ready": ("█", "blue"),
    "running": ("▓", "cyan"),
    "restored": ("▒", "blue"),
    "useful": ("█", "green"),
}
_BAR_MAX, _BAR_MIN = 60, 10


def print_summary(summary: dict[str, Any], slots: int) -> None:
    """Print the summary for people."""
    click.echo()
    if summary["accuracy"] is not None:
        say(
            f": accuracy {summary['accuracy']:.4f} after {summary['steps']} steps",
            head=paint(summary["phase"], bold=True),
            hang=2,
        )
    say(
        f"{counted(summary['restarts'], 'restart')}, {counted(summary['steps_lost'], 'step')} done again, "
        f"{summary['total_s']:.0f}s in all"
    )
    longest_s = max((sum(fault["stages_s"].values()) for fault in summary["faults"]), default=0.0)
    for fault, kept in zip(summary["faults"], [*summary["slots_kept"], "?", "?"], strict=False):
        _print_fault(fault, kept, slots, longest_s)
    broken = [name.replace("_", " ") for name, kept in summary["promises"].items() if not kept and name != "all"]
    for name in broken:
        say(f" {name}", head=f"  {paint('did not happen as promised:', 'red')}", hang=4)
    if broken and summary["message"]:
        say(f"the job says: {summary['message']}", head="  ")
    if not broken:
        say("\nNext: `muster up` starts a cluster that stays; `muster run train.py --follow` trains on it.")


def _print_fault(fault: dict[str, Any], kept: object, slots: int, longest_s: float) -> None:
    useful = fault["time_to_useful_s"]
    click.echo()
    say(
        f": attempt {fault['attempt']} ended at slot {fault['slot']} on {fault['node']} "
        f"({fault['cause']}, {fault['rule']})",
        head=paint(fault["what"] or fault["rule"], bold=True),
        hang=2,
    )
    say(
        f"{kept} of {slots} slots kept, {counted(fault['steps_lost'] or 0, 'step')} done again, useful again after "
        + (f"{useful:.1f}s" if useful is not None else "?"),
        head="  ",
    )
    width = min(_BAR_MAX, shutil.get_terminal_size().columns - 4)
    if width >= _BAR_MIN and longest_s > 0:
        click.echo(f"  {stage_bar(fault['stages_s'], longest_s, width)}")
    _print_legend(fault["stages_s"])


def _print_legend(stages_s: dict[str, float]) -> None:
    """The stages with their signs and times, on as many lines as the terminal needs."""
    room = text_width()
    line, used = "", 0
    for name, took_s in stages_s.items():
        text = f"{_STAGES[name][0]} {name} {took_s:.2f}s"
        if line and room and used + 2 + len(text) > room:
            click.echo(line)
            line, used = "", 0
        line += "  " + paint(text, _STAGES[name][1])
        used += 2 + len(text)
    click.echo(line)


def stage_bar(stages_s: dict[str, float], longest_s: float, width: int) -> str:
    """Draw the stages as a bar. A total of `longest_s` fills `width`."""
    bar, passed_s, drawn = "", 0.0, 0
    for name, took_s in stages_s.items():
        passed_s += took_s
        end = round(width * passed_s / longest_s)
        sign, color = _STAGES[name]
        bar += paint(sign * (end - drawn), color)
        drawn = end
    return bar
