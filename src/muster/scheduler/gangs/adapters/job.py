"""Adapter for Indexed Jobs. Pods of other Jobs are independent work items and stay single pods."""

from __future__ import annotations

from muster.api.names import SCHEDULER_NAME
from muster.kube.objects.batch import Job, JobSpec, PodFailurePolicyRule
from muster.kube.objects.meta import Condition
from muster.kube.objects.pod import Pod
from muster.scheduler.gangs.adapters.membership import (
    Description,
    Membership,
    Role,
    Shape,
    WorkloadRef,
    controller_of,
    member_of,
    number,
)
from muster.scheduler.gangs.adapters.source import Source

NAME = "job"
INDEX = "batch.kubernetes.io/job-completion-index"
_STOPPED = (143, 137)
"""Exit codes of containers whose pod is deleted: SIGTERM, then SIGKILL."""


def member(pod: Pod) -> Membership | None:
    """Return the pod's membership, from its owner and completion index.

    The index is a label since Kubernetes 1.28 and was an annotation before.
    """
    owner = controller_of(pod, "Job", "batch")
    index = completion_index(pod)
    if owner is None or index is None:
        return None
    return member_of(WorkloadRef(NAME, pod.namespace, owner.name, owner.uid), pod, position=(index,))


def completion_index(pod: Pod) -> int | None:
    """Return the pod's completion index in an Indexed Job; None if it has none."""
    meta = pod.metadata
    return number(meta.labels.get(INDEX) or meta.annotations.get(INDEX, ""))


def describe(job: Job) -> Description:
    """Describe a Job: all pods that it runs at one time (`pods_at_once`) are its gang.

    If parallelism is below completions, a pod for the next index takes the slot of one that succeeded.
    """
    spec = job.spec
    failed = index_count(job.status.failed_indexes or "")
    count = max(0, pods_at_once(spec, failed))
    ended = ended_by(job.status.conditions, ("Complete", "Failed"), spec.suspend)
    ours = spec.template.spec.scheduler_name == SCHEDULER_NAME and spec.completion_mode == "Indexed"
    return Description(Shape({"": Role.exactly(count)}), ended, release_warning(spec) if ours else "")


def pods_at_once(spec: JobSpec, failed: int = 0) -> int:
    """Return how many pods the Job runs at one time if `failed` indexes failed. Unset numbers count as 1."""
    parallelism = 1 if spec.parallelism is None else spec.parallelism
    completions = parallelism if spec.completions is None else spec.completions
    return min(parallelism, completions - failed)


def index_count(text: str) -> int:
    """Return how many indexes are in a text such as "1,3-5" (Job.status.completedIndexes and failedIndexes)."""
    total = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        start, end = number(first), number(last or first)
        if start is not None and end is not None:
            total += max(0, end - start + 1)
    return total


def ended_by(conditions: tuple[Condition, ...], finals: tuple[str, ...], suspended: bool | None) -> str:
    """Return the condition in which the workload no longer needs nodes; "" if there is none."""
    for condition in conditions:
        if condition.type in finals and condition.status == "True":
            return condition.type
    return "Suspended" if suspended else ""


def release_warning(spec: JobSpec) -> str:
    """Warn if the Job would count the release of its gang as failures.

    A release deletes pods with condition DisruptionTarget (KEP-3329).
    """
    policy = spec.pod_failure_policy
    remedy = "put a rule with action Ignore onPodConditions type DisruptionTarget first in its podFailurePolicy"
    for position, rule in enumerate(policy.rules if policy is not None else ()):
        if not _matches_release(rule):
            continue
        if rule.action == "Ignore":
            return ""
        return (
            f"rule {position} of its podFailurePolicy ({rule.action}) also holds for pods deleted because their gang "
            f"could not be bound or has to make room; {remedy}"
        )
    return (
        "pods deleted because their gang could not be bound or has to make room would count against its backoffLimit; "
        + remedy
    )


def _matches_release(rule: PodFailurePolicyRule) -> bool:
    """Return whether the rule may match a pod that was released while its containers ran."""
    codes = rule.on_exit_codes
    if codes is not None:
        return any((code in codes.values) == (codes.operator == "In") for code in _STOPPED)
    return any(each.type == "DisruptionTarget" and each.status == "True" for each in rule.on_pod_conditions or ())


JOB = Source(NAME, Job, member, describe)
