"""Summarizes a replay in plain numbers, the same for the same seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from muster.api.scheduling import BackfillPolicy, QueueOrder
from muster.sim.replay.job import Workload
from muster.sim.replay.replay import Conditions, Outcome
from muster.sim.replay.run import Run

INTERVALS = 120
HOUR_S = 3600.0


class QueueTime(msgspec.Struct, frozen=True, rename="camel"):
    """Waiting times of jobs with `gpus_min` to `gpus_max` GPUs, until their first start, in seconds.

    The percentiles `p50_s` and so on are about jobs that started. `waiting` is the number of jobs that had not started
    at the end of the replay. `mtbf_hours` is the running time divided by the number of interruptions; None if there
    were no interruptions.
    """

    gpus_min: int
    gpus_max: int
    jobs: int
    waiting: int
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    mean_s: float | None
    interruptions: int
    mtbf_hours: float | None

    @property
    def gpus_text(self) -> str:
        """Return the range of GPUs as text, such as 8-15."""
        return str(self.gpus_min) if self.gpus_min == self.gpus_max else f"{self.gpus_min}-{self.gpus_max}"


class Moment(msgspec.Struct, frozen=True, rename="camel"):
    """Mean values over one interval that begins at `hour`. Values are shares of all GPUs, except `waiting_jobs`.

    Attributes:
        utilisation: GPUs that are allocated to jobs.
        stopped: GPUs that are allocated to jobs that cannot run because a member was lost.
        down: GPUs on failed nodes.
        idle: free GPUs on usable nodes.
        split: the idle GPUs on nodes whose other GPUs are in use.
        idle_while_waiting: the idle GPUs while at least one job waits.
        idle_while_restartable_fits: the idle GPUs while a restartable job waits that would fit on them.
        waiting_gpus: GPUs that waiting jobs request; 1.0 means as many as the cluster has.
        waiting_jobs: number of waiting jobs.
    """

    hour: float
    utilisation: float
    stopped: float
    down: float
    idle: float
    split: float
    idle_while_waiting: float
    idle_while_restartable_fits: float
    waiting_gpus: float
    waiting_jobs: float


class GpuHours(msgspec.Struct, frozen=True, rename="camel"):
    """The use of the GPU time, in GPU hours.

    Attributes:
        capacity: the time of all GPUs.
        used: the time that was allocated to jobs; the sum of useful, redone and stopped.
        useful: work that was not lost.
        redone: work that was lost in failures because it was newer than the last checkpoint.
        stopped: time in which a job waited for a node or for its restart.
        down: the time of GPUs on failed nodes.
    """

    capacity: float
    used: float
    useful: float
    redone: float
    stopped: float
    down: float


class Forecasts(msgspec.Struct, frozen=True, rename="camel"):
    """The scheduler's first forecasts of when waiting jobs would start.

    Attributes:
        waited: the number of jobs that did not start when they arrived.
        made: the number of these jobs with a forecast. If a job still waits at the end of the replay, its forecast
            counts only if the interval has ended.
        held: the number of forecasts in whose interval the job started.
        mean_hours: the mean length of the intervals that have an end; None if there are none.
    """

    waited: int
    made: int
    held: int
    mean_hours: float | None


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """The results of a replay as numbers.

    `left_out` counts the jobs that were not replayed, by reason. `restartable` counts jobs that may be backfilled on
    reserved nodes, and `asked` counts how often such jobs were asked to leave these. `other_users_p90_s` is the wait of
    jobs of all users but the one that used most GPU hours; None if the jobs have one user or none.
    """

    source: str
    nodes: int
    gpus: int
    days: float
    seed: int
    policy: BackfillPolicy
    order: QueueOrder
    jobs: int
    restartable: int
    gangs: int
    pods: int
    left_out: Mapping[str, int]
    started: int
    done: int
    utilisation: float
    fragmentation: float
    idle_while_waiting: float
    idle_while_restartable_fits: float
    node_failures: int
    interruptions: int
    preemptions: int
    asked: int
    released: int
    gpu_hours: GpuHours
    forecasts: Forecasts
    queue: Sequence[QueueTime]
    other_users_p90_s: float | None
    over_time: Sequence[Moment]
    placements_hash: str


def summarise(workload: Workload, nodes: int, conditions: Conditions, outcome: Outcome) -> Report:
    """Return the report of a replay."""
    runs, gpus = outcome.runs, max(outcome.gpus, 1)
    moments = outcome.series.means(outcome.end_s, INTERVALS)
    mean = {name: sum(each[name] for each in moments) / len(moments) for name in moments[0]}
    hours = outcome.end_s / HOUR_S
    redone = sum(run.redone_s * run.job.gpus for run in runs) / HOUR_S
    useful = sum(run.work_s(outcome.end_s) * run.job.gpus for run in runs) / HOUR_S
    used = mean["busy"] * hours
    return Report(
        source=workload.source,
        nodes=nodes,
        gpus=outcome.gpus,
        days=_short(outcome.end_s / 86400),
        seed=conditions.seed,
        policy=conditions.policy,
        order=conditions.order,
        jobs=len(workload.jobs),
        restartable=sum(job.restartable for job in workload.jobs),
        gangs=sum(job.gang for job in workload.jobs),
        pods=sum(job.members for job in workload.jobs),
        left_out=workload.left_out,
        started=sum(run.started_s is not None for run in runs),
        done=sum(run.ended for run in runs),
        utilisation=_short(mean["busy"] / gpus),
        fragmentation=_short(mean["split"] / mean["idle"]) if mean["idle"] else 0.0,
        idle_while_waiting=_short(mean["idle_while_waiting"] / gpus),
        idle_while_restartable_fits=_short(mean["idle_while_restartable_fits"] / gpus),
        node_failures=outcome.node_failures,
        interruptions=sum(run.interruptions for run in runs),
        preemptions=outcome.preemptions,
        asked=outcome.asked,
        released=outcome.released,
        gpu_hours=GpuHours(
            capacity=_short(gpus * hours),
            used=_short(used),
            useful=_short(useful),
            redone=_short(redone),
            stopped=_short(max(0.0, used - useful - redone)),
            down=_short(mean["down"] * hours),
        ),
        forecasts=_forecasts(runs, outcome.end_s),
        queue=_queue(runs, outcome.end_s),
        other_users_p90_s=_others_wait(runs, outcome.end_s),
        over_time=[_moment(index * hours / INTERVALS, each, gpus) for index, each in enumerate(moments)],
        placements_hash=outcome.placements_hash,
    )


def _moment(hour: float, values: Mapping[str, float], gpus: int) -> Moment:
    return Moment(
        hour=_short(hour),
        utilisation=_short(values["busy"] / gpus),
        stopped=_short(values["stopped"] / gpus),
        down=_short(values["down"] / gpus),
        idle=_short(values["idle"] / gpus),
        split=_short(values["split"] / gpus),
        idle_while_waiting=_short(values["idle_while_waiting"] / gpus),
        idle_while_restartable_fits=_short(values["idle_while_restartable_fits"] / gpus),
        waiting_gpus=_short(values["waiting_gpus"] / gpus),
        waiting_jobs=_short(values["waiting_jobs"]),
    )


def _forecasts(runs: Sequence[Run], end_s: float) -> Forecasts:
    """Count forecasts. If a job still waits and its interval has not ended, its forecast does not count."""
    waited = [run for run in runs if run.started_s is None or run.started_s > run.job.submit_s]
    made = held = 0
    lengths_s = []
    for run in waited:
        if run.forecast is None:
            continue
        earliest, latest = run.forecast
        if run.started_s is None and (latest is None or latest >= end_s):
            continue
        made += 1
        held += run.started_s is not None and earliest <= run.started_s and (latest is None or run.started_s <= latest)
        if latest is not None:
            lengths_s.append(latest - earliest)
    return Forecasts(len(waited), made, held, _short(sum(lengths_s) / HOUR_S / len(lengths_s)) if lengths_s else None)


def _queue(runs: Iterable[Run], end_s: float) -> list[QueueTime]:
    """Group jobs by powers of two of their GPUs. Jobs without GPUs come first."""
    classes: dict[int, list[Run]] = {}
    for run in runs:
        classes.setdefault(run.job.gpus.bit_length(), []).append(run)
    return [_queue_time(bits, classes[bits], end_s) for bits in sorted(classes)]


def _others_wait(runs: Sequence[Run], end_s: float) -> float | None:
    """Return the P90 wait of the jobs of all users but the heaviest. Jobs that never started count until the end."""
    used: Counter[str] = Counter()
    for run in runs:
        used[run.job.user] += int(run.work_s(end_s) * run.job.gpus)
    if len(used) < 2:
        return None
    heaviest = max(used, key=lambda user: (used[user], user))
    others = (run for run in runs if run.job.user != heaviest)
    waits = sorted((end_s if run.started_s is None else run.started_s) - run.job.submit_s for run in others)
    return percentile(waits, 90)


def _queue_time(bits: int, runs: Sequence[Run], end_s: float) -> QueueTime:
    waits = sorted(run.started_s - run.job.submit_s for run in runs if run.started_s is not None)
    interruptions = sum(run.interruptions for run in runs)
    worked_s = sum(run.work_s(end_s) + run.redone_s for run in runs)
    return QueueTime(
        gpus_min=1 << bits >> 1,
        gpus_max=max((1 << bits) - 1, 0),
        jobs=len(runs),
        waiting=len(runs) - len(waits),
        p50_s=percentile(waits, 50),
        p90_s=percentile(waits, 90),
        p99_s=percentile(waits, 99),
        mean_s=_short(sum(waits) / len(waits)) if waits else None,
        interruptions=interruptions,
        mtbf_hours=_short(worked_s / HOUR_S / interruptions) if interruptions else None,
    )


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Return the percentile: the smallest value that is at least as large as `percent` % of all values.

    None if empty.
    """
    if not ordered:
        return None
    return _short(ordered[max(0, -(-len(ordered) * percent // 100) - 1)])


def _short(value: float) -> float:
    """Round to six digits, so that rounding errors do not make equal results differ."""
    return round(value, 6)
