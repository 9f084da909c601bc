"""Job traces of the Acme clusters: `trace_seren.csv`, `trace_kalos.csv` (InternLM/AcmeTrace, its README; NSDI'24)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from msgspec.structs import replace

from muster.sim.replay.job import Job, Workload, job_of_gpus
from muster.sim.replay.table import read_rows

COLUMNS = ("job_id", "node_num", "gpu_num", "submit_time", "start_time", "end_time")


def read_jobs(path: Path, text: str, gpus_per_node: int) -> Workload:
    """Return the GPU jobs that ran. Raises BadTrace.

    Jobs are only counted if they have no GPUs, never started, or were still running when the trace was taken. Jobs
    request only GPUs, because the trace does not have their CPUs and memory. The type of work (such as Pretrain) stands
    for the image.
    """
    left_out: Counter[str] = Counter()
    found: list[tuple[float, float, str, int, int, str, str]] = []
    for row in read_rows(path, text, COLUMNS, "an Acme trace"):
        submitted, started, ended = (row.time_s(name) for name in ("submit_time", "start_time", "end_time"))
        if submitted is None:
            raise row.bad("submit_time", "a time such as 2023-03-01 00:18:22+08:00")
        gpus, nodes = row.whole("gpu_num"), row.whole("node_num")
        if not gpus:
            left_out["no GPUs"] += 1
        elif started is None or ended is None:
            left_out["never started or still running"] += 1
        else:
            if ended < started:
                raise row.bad("end_time", "after start_time")
            if nodes > gpus:
                raise row.bad("node_num", f"at most gpu_num, {gpus}")
            work = (row.optional("user"), row.optional("type"))
            found.append((submitted, ended - started, row.text("job_id"), gpus, max(1, nodes), *work))
    found.sort()
    jobs: list[Job] = [
        replace(job_of_gpus(name, submitted - found[0][0], run_s, gpus, gpus_per_node, nodes), user=user, image=work)
        for submitted, run_s, name, gpus, nodes, user, work in found
    ]
    return Workload("Acme", jobs, left_out)
