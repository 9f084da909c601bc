"""Adapter for JobSets: the pods of all Jobs of a JobSet are one gang."""

from __future__ import annotations

from muster.api.names import SCHEDULER_NAME
from muster.kube.objects.pod import Pod
from muster.kube.objects.workloads import JobSet
from muster.scheduler.gangs.adapters.job import completion_index, ended_by, pods_at_once, release_warning
from muster.scheduler.gangs.adapters.membership import (
    Description,
    Membership,
    Role,
    Shape,
    WorkloadRef,
    member_of,
    number,
)
from muster.scheduler.gangs.adapters.source import Source

NAME = "jobset"
_PREFIX = "jobset.sigs.k8s.io/"


def member(pod: Pod) -> Membership | None:
    """Return the pod's membership, from JobSet's labels. The UID is a label since v0.9."""
    labels = pod.metadata.labels
    name, part = labels.get(f"{_PREFIX}jobset-name"), labels.get(f"{_PREFIX}replicatedjob-name")
    if not name or part is None:
        return None
    job, index = number(labels.get(f"{_PREFIX}job-index", "")), completion_index(pod)
    return member_of(
        WorkloadRef(NAME, pod.namespace, name, labels.get(f"{_PREFIX}jobset-uid", "")),
        pod,
        role=part,
        position=(job, index) if job is not None and index is not None else (),
        attempt=number(labels.get(f"{_PREFIX}restart-attempt", "")) or 0,
    )


def describe(obj: JobSet) -> Description:
    """Describe a JobSet: all parts start together, except parts that it creates after others are ready."""
    spec = obj.spec
    in_order = spec.startup_policy is not None and spec.startup_policy.startup_policy_order == "InOrder"
    roles: dict[str, Role] = {}
    warning = ""
    for position, part in enumerate(spec.replicated_jobs):
        count = part.replicas * pods_at_once(part.template.spec)
        later = bool(part.depends_on) or (in_order and position > 0)
        roles[part.name] = Role(0 if later else count, count, count)
        if part.template.spec.template.spec.scheduler_name == SCHEDULER_NAME and not warning:
            said = release_warning(part.template.spec)
            warning = f"jobs of {part.name}: {said}" if said else ""
    return Description(Shape(roles), ended_by(obj.status.conditions, ("Completed", "Failed"), spec.suspend), warning)


JOBSET = Source(NAME, JobSet, member, describe)
