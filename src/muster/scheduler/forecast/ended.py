"""Finds gangs that have ended, and how long they ran: TrainingJobs by their status, other gangs by their pods.

Balloons, DaemonSet pods, static pods and preflight pods are not recorded, because no gang waits for their end. Single
pods without GPUs are not recorded either: there may be very many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from msgspec.structs import replace

from muster.api.fixed_spec import effective
from muster.api.names import LABEL_USER
from muster.api.training_job import TrainingJob
from muster.kube.objects.pod import Pod
from muster.scheduler.forecast.likeness import Likeness, pattern_of
from muster.scheduler.forecast.run_times import EndedRun
from muster.scheduler.gangs.gang import Gang, PodRecord
from muster.scheduler.gangs.likeness import gpus_of, likeness_of
from muster.scheduler.gangs.placements import TRAINING_JOB
from muster.scheduler.gangs.priority import Rank


def ended_job(job: TrainingJob, likeness: Likeness, deleted_at: float | None) -> EndedRun | None:
    """Return the run of a TrainingJob that has ended, is suspended, or was deleted; else None.

    A job that never ran, or whose time is not known, is not recorded. If a suspended job is resumed, its later end
    replaces the record.

    Args:
        job: the newest version of the job.
        likeness: of its gang.
        deleted_at: when it was deleted, in seconds since the epoch; None if it exists.
    """
    status = job.status
    if status.start_time is None:
        return None
    finished = status.completion_time if status.phase in ("Succeeded", "Failed") else _suspended_since(job)
    if finished is None and deleted_at is None:
        return None
    ended_at = finished.timestamp() if finished is not None else deleted_at
    assert ended_at is not None
    run_s = status.ran_seconds(ended_at)
    if not run_s:  # an earlier version did not count the time
        if status.ran_attempt != 1:
            return None
        run_s = max(0.0, ended_at - status.start_time.timestamp())
    return EndedRun(likeness, run_s, status.phase == "Succeeded", ended_at)


def _suspended_since(job: TrainingJob) -> datetime | None:
    if job.status.phase != "Suspended":
        return None
    found = (each for each in job.status.conditions if each.type == "Suspended" and each.status == "True")
    return next((each.last_transition_time for each in found), None)


def likeness_of_job(job: TrainingJob, gang: Gang | None, team_key: str) -> Likeness:
    """Return the likeness of a job's gang; if its pods are gone, what the job itself says."""
    if gang is not None and gang.pods:
        return likeness_of_ended(gang)
    job = effective(job).job
    use, labels = job.status.node_use, (job.spec.template.get("metadata") or {}).get("labels") or {}
    whole = use.node_gpus if use is not None and job.exclusive else None
    return Likeness(
        namespace=job.namespace,
        team=labels.get(team_key, ""),
        user=job.metadata.labels.get(LABEL_USER, ""),
        pattern=pattern_of(job.name),
        image=job.spec.image,
        nodes=job.spec.replicas,
        gpus=whole or (job.gpus if job.spec.gpu_resource.endswith("/gpu") else 0),
    )


def likeness_of_ended(gang: Gang) -> Likeness:
    """Return the likeness of a gang whose pods may all have finished: they count too."""
    gpus = max((gpus_of(pod.cls) for pod in gang.pods.values() if pod.cls is not None), default=0)
    return replace(likeness_of(gang), gpus=gpus)


def running(gangs: Mapping[str, Gang], jobs: Iterable[TrainingJob], now: float) -> Iterator[EndedRun]:
    """Yield the runs of gangs that run now, as runs that have not completed."""
    ran_s = {job.uid: job.status.ran_seconds(now) for job in jobs if job.status.phase == "Running"}
    for gang in gangs.values():
        if gang.job is not None:
            seconds = ran_s.get(gang.uid, 0.0)
        else:
            bound = [pod for pod in gang.current.values() if pod.node and pod.bound_since]
            if not all(_is_recorded(gang, pod) for pod in bound):
                continue
            seconds = now - min((pod.bound_since for pod in bound), default=now)
        if seconds > 0.0:
            yield EndedRun(gang.likeness or likeness_of(gang), seconds, False, now)


class PodRuns:
    """Run times of gangs without a TrainingJob: from the first bind to the end of the last pod."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, EndedRun, float]] = {}

    def pod_ended(self, gang: Gang, record: PodRecord, at: float) -> None:
        """Take in a pod that has finished, or is about to be removed from the state, at this time."""
        if not record.bound_since or not _is_recorded(gang, record):
            return
        good = record.succeeded and not record.terminating
        known = self._open.get(gang.key)
        if known is None:
            likeness = likeness_of_ended(gang)
            if gang.single and not likeness.gpus:
                return
            uid = record.uid if gang.single else gang.uid or gang.full_name
            self._open[gang.key] = uid, EndedRun(likeness, 0.0, good, at), record.bound_since
        else:
            uid, run, since = known
            run = replace(run, completed=run.completed and good, ended_at=max(run.ended_at, at))
            self._open[gang.key] = uid, run, min(since, record.bound_since)

    def ended(self, gangs: Mapping[str, Gang]) -> Iterator[tuple[str, EndedRun]]:
        """Yield (UID, run) of the gangs that have no running pod any more, each once."""
        for key in list(self._open):
            gang = gangs.get(key)
            if gang is None or not any(pod.node and not pod.finished for pod in gang.pods.values()):
                uid, run, since = self._open.pop(key)
                yield uid, replace(run, run_s=max(0.0, run.ended_at - since))


def finished_at(pod: Pod) -> float | None:
    """Return when the last container of a finished pod ended; None if its status does not say."""
    states = (each.state.terminated for each in pod.status.container_statuses if each.state is not None)
    ends = [state.finished_at.timestamp() for state in states if state is not None and state.finished_at is not None]
    return max(ends, default=None)


def _is_recorded(gang: Gang, record: PodRecord) -> bool:
    if gang.job is not None or (record.owner is not None and record.owner.kind == TRAINING_JOB):
        return False
    if record.traits.pinned or record.traits.rank is Rank.BALLOON:
        return False
    return record.cls is not None and not record.cls.tests
