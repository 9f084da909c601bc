"""Draws a job's slots as a small picture: one cell for each node, coloured by its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from muster.api.fixed_spec import effective
from muster.cli.jobs.pods import slot_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from muster.api.training_job import TrainingJob
    from muster.kube.objects.node import Node
    from muster.kube.objects.pod import Pod

CELL_WIDTH = 16
_COLORS = {"running": "green", "gone": "bold red", "free": "dim"}


class Cell(NamedTuple):
    """A node, or none yet, and what happens in the slot there."""

    node: str
    slot: int | None
    state: str


def cells(job: TrainingJob, pods: Sequence[Pod], nodes: Sequence[Node]) -> list[Cell]:
    """Returns one cell for each node, then one for each slot that waits for a node."""
    newest = {slot_of(pod): pod for pod in pods if pod.metadata.deletion_timestamp is None}
    ready = {node.name: _ready(node) for node in nodes}
    at = {pod.spec.node_name: slot for slot, pod in newest.items() if pod.spec.node_name}
    found = []
    for name in sorted({*ready, *at}):
        slot = at.get(name)
        if not ready.get(name, False):
            found.append(Cell(name, slot, "gone"))
        elif slot is None:
            found.append(Cell(name, None, "free"))
        else:
            found.append(Cell(name, slot, _doing(job, newest[slot])))
    slots = range(effective(job).job.spec.replicas)
    waiting = [slot for slot in slots if slot not in newest or not newest[slot].spec.node_name]
    return found + [Cell("", slot, "waits for a node") for slot in waiting]


def _ready(node: Node) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)


def _doing(job: TrainingJob, pod: Pod) -> str:
    if pod.status.phase != "Running":
        return {"Succeeded": "done", "Failed": "failed"}.get(pod.status.phase, "starting")
    return {"Running": "running", "Succeeded": "done", "Failed": "failed"}.get(job.status.phase, "stands by")


def picture(shown: Sequence[Cell], width: int) -> RenderableType:
    """The cells beside each other, as many in a row as there is width for."""
    from rich.table import Table
    from rich.text import Text

    in_a_row = max(1, min(len(shown), width // CELL_WIDTH))
    table = Table.grid(padding=(0, 0))
    for _ in range(in_a_row):
        table.add_column(width=min(CELL_WIDTH, width))
    for start in range(0, len(shown), in_a_row):
        row = shown[start : start + in_a_row]
        table.add_row(*(Text(cell.node or "-", style="bold" if cell.slot is not None else "dim") for cell in row))
        table.add_row(*(_inside(cell) for cell in row))
    return table


def _inside(cell: Cell) -> RenderableType:
    from rich.text import Text

    text = cell.state if cell.slot is None else f"{cell.slot} {cell.state}"
    return Text(text, style=_COLORS.get(cell.state, "yellow"), no_wrap=True, overflow="ellipsis")
