"""Job traces of the Acme clusters: `trace_seren.csv`, `trace_kalos.csv` (InternLM/AcmeTrace, its README; NSDI'24)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from muster.sim.replay.job import Job, Workload, job_of_gpus
from muster.sim.replay.table import Row, read_rows

COLUMNS = ("job_id", "node_num", "gpu_num", "submit_time", "start_time", "end_time")


def read_jobs(path: Path, text: str, gpus_per_node: int) -> Workload:
    """Return the GPU jobs that ran. Raises BadTrace.

    Jobs without GPUs, never started or still running when the trace was taken are counted only. A job asks for GPUs:
    CPUs and memory are taken to come with them.
    """
    left_out: Counter[str] = Counter()
    found: list[tuple[float, float, Row]] = []
    for row in read_rows(path, text, COLUMNS, "an Acme trace"):
        submitted, started, ended = (row.time_s(name) for name in ("submit_time", "start_time", "end_time"))
        if submitted is None:
            raise row.bad("submit_time", "a time such as 2023-03-01 00:18:22+08:00")
        if not row.whole("gpu_num"):
            left_out["no GPUs"] += 1
        elif started is None or ended is None:
            left_out["never started or still running"] += 1
        else:
            if ended < started:
                raise row.bad("end_time", "after start_time")
            found.append((submitted, ended - started, row))
    first = min((submitted for submitted, _, _ in found), default=0.0)
    jobs = [_job(row, submitted - first, run_s, gpus_per_node) for submitted, run_s, row in found]
    return Workload("Acme", sorted(jobs, key=lambda job: job.submit_s), left_out)


def _job(row: Row, submit_s: float, run_s: float, gpus_per_node: int) -> Job:
    gpus, nodes = row.whole("gpu_num"), max(1, row.whole("node_num"))
    if nodes > gpus:
        raise row.bad("node_num", f"at most gpu_num, {gpus}")
    return job_of_gpus(row.text("job_id"), submit_s, run_s, gpus, gpus_per_node, nodes)
