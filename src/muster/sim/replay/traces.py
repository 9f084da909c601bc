"""Opens a trace, and detects its format from the content."""

from __future__ import annotations

import csv
from pathlib import Path

from muster.sim.replay import acme, openb, philly
from muster.sim.replay.job import Workload
from muster.sim.replay.table import BadTrace, read_text


def read_trace(path: Path, gpus_per_node: int) -> Workload:
    """Return the jobs of a trace. If the trace names only GPUs, `gpus_per_node` determines the number of members.

    Raises BadTrace if the format is unknown or a line is not valid.
    """
    text = read_text(path)
    if text.lstrip().startswith("["):
        return philly.read_jobs(path, text, gpus_per_node)
    header = {name.strip() for name in next(csv.reader(text.splitlines()[:1]), [])}
    if len(header & set(openb.TASK_COLUMNS)) > len(header & set(acme.COLUMNS)):
        return openb.read_tasks(path, text)
    if header & set(acme.COLUMNS):
        return acme.read_jobs(path, text, gpus_per_node)
    raise BadTrace(
        path,
        1,
        f"is not a trace we know: an OpenB task list has {', '.join(openb.TASK_COLUMNS)}; "
        f"an Acme trace has {', '.join(acme.COLUMNS)}; a Philly log is a JSON list",
    )
