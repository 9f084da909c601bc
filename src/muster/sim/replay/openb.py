"""Tasks and nodes of the OpenB cluster: alibaba/clusterdata, cluster-trace-gpu-v2023 (its README; USENIX ATC'23).

A task is one pod. A task with a share of a GPU (gpu_milli below 1000) gets a whole GPU, because device plugins
allocate whole GPUs. Best-effort tasks (qos BE) have priority 0, all others 1000.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from muster.sim.replay.job import Job, NodeShape, Shape, Workload
from muster.sim.replay.table import BadTrace, Row, read_rows, read_text

TASK_COLUMNS = (
    "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_spec", "qos", "creation_time", "deletion_time", "scheduled_time",
)  # fmt: skip
TIME_COLUMNS = ("creation_time", "deletion_time", "scheduled_time")
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")


def read_nodes(path: Path) -> list[NodeShape]:
    """Return the cluster. Raises BadTrace."""
    nodes: dict[str, NodeShape] = {}
    for row in read_rows(path, read_text(path), NODE_COLUMNS, "an OpenB node list"):
        node = NodeShape(
            row.text("sn"), row.whole("gpu"), row.whole("cpu_milli"), row.whole("memory_mib"), row.text("model")
        )
        if not node.name or node.name in nodes:
            raise row.bad("sn", "a name that no other node has")
        if not node.cpu_milli or not node.memory_mib:
            raise row.bad("cpu_milli" if not node.cpu_milli else "memory_mib", "more than 0")
        nodes[node.name] = node
    if not nodes:
        raise BadTrace(path, 0, "has no nodes")
    return list(nodes.values())


def read_tasks(path: Path, text: str) -> Workload:
    """Return the tasks that ran. Tasks that were never scheduled are only counted. Raises BadTrace."""
    _check_times(path, text)
    left_out: Counter[str] = Counter()
    found: list[Job] = []
    for row in read_rows(path, text, TASK_COLUMNS, "an OpenB task list"):
        created = row.number("creation_time")
        if not row.text("scheduled_time"):
            left_out["never scheduled"] += 1
            continue
        found.append(_task(row, created))
    found.sort(key=lambda job: job.submit_s)
    first = found[0].submit_s if found else 0.0
    jobs = [Job(j.name, j.submit_s - first, j.run_s, 1, j.shape, j.gang, j.priority) for j in found]
    return Workload("OpenB", jobs, left_out)


def _check_times(path: Path, text: str) -> None:
    """Refuse the variants of the task list without times. They only test which tasks fit into a cluster at once."""
    header = {name.strip() for name in text.partition("\n")[0].split(",")}
    if {"cpu_milli", "num_gpu"} <= header and header.isdisjoint(TIME_COLUMNS):
        raise BadTrace(
            path,
            1,
            f"an OpenB task list without times (no {', '.join(TIME_COLUMNS)}) is a packing problem; a replay needs to "
            "know when tasks come and how long they run; use a variant of the list that has these columns",
        )


def _task(row: Row, created: float) -> Job:
    scheduled, deleted = row.number("scheduled_time"), row.number("deletion_time")
    if scheduled < created:
        raise row.bad("scheduled_time", f"after creation_time, {created:g}")
    if deleted < scheduled:
        raise row.bad("deletion_time", f"after scheduled_time, {scheduled:g}")
    models = tuple(sorted(model for model in row.text("gpu_spec").split("|") if model))
    shape = Shape(row.whole("num_gpu"), row.whole("cpu_milli"), row.whole("memory_mib"), models)
    priority = 0 if row.text("qos") == "BE" else 1000
    return Job(row.text("name"), created, deleted - scheduled, 1, shape, gang=False, priority=priority)
