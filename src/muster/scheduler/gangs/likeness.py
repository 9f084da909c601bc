"""Describes a gang for predictions of its run time."""

from __future__ import annotations

from muster.scheduler.forecast.likeness import Likeness, pattern_of
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.pods.pod_class import PodClass


def likeness_of(gang: Gang) -> Likeness:
    """Return the likeness of a gang. Facts of a TrainingJob have precedence over those of its pods."""
    job = gang.job
    name = gang.name
    if gang.workload is not None:
        name = gang.workload.name
    elif gang.single and gang.owner is not None:
        name = gang.owner.name
    return Likeness(
        namespace=gang.namespace,
        team=gang.team,
        user=(job.user if job is not None else "") or gang.user,
        pattern=pattern_of(name),
        image=(job.image if job is not None else "") or gang.image,
        nodes=gang.size,
        gpus=max((gpus_of(cls) for cls in set(gang.slot_class.values())), default=0),
    )


def gpus_of(cls: PodClass) -> int:
    """Return the number of GPUs of a pod: extended resources whose name ends in /gpu, and GPUs of a whole node."""
    if cls.whole is not None and cls.whole.gpus:
        return cls.whole.gpus
    return sum(amount for resource, amount in cls.request.items() if resource.endswith("/gpu"))
