"""Adapter for MPIJobs of kubeflow's mpi-operator. The launcher runs beside its workers, so it is a member."""

from __future__ import annotations

from muster.kube.objects.pod import Pod
from muster.kube.objects.workloads import MPIJob
from muster.scheduler.gangs.adapters.job import ended_by
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

NAME = "mpijob"
LAUNCHER, WORKER = "launcher", "worker"
_PREFIX = "training.kubeflow.org/"


def member(pod: Pod) -> Membership | None:
    """Return the pod's membership, from the operator's labels.

    Workers belong to the MPIJob; the launcher belongs to a Job of the MPIJob.
    """
    labels = pod.metadata.labels
    name, role = labels.get(f"{_PREFIX}job-name"), labels.get(f"{_PREFIX}job-role")
    if labels.get(f"{_PREFIX}operator-name") != "mpi-operator" or not name or role not in (LAUNCHER, WORKER):
        return None
    owner = controller_of(pod, "MPIJob", "kubeflow.org")
    index = 0 if role == LAUNCHER else number(labels.get(f"{_PREFIX}replica-index", ""))
    return member_of(
        WorkloadRef(NAME, pod.namespace, name, owner.uid if owner is not None else ""),
        pod,
        role=role,
        position=(index,) if index is not None else (),
    )


def describe(job: MPIJob) -> Description:
    """Describe an MPIJob: launcher and workers start together, once schedulingPolicy.minAvailable pods exist.

    minAvailable includes the launcher. With WaitForWorkersReady the operator creates the launcher when the workers
    run. So the workers start without it, and it is placed as a member once it exists.
    """
    spec = job.spec
    replicas = {name: 1 if each.replicas is None else each.replicas for name, each in spec.mpi_replica_specs.items()}
    launchers, workers = replicas.get("Launcher", 0), replicas.get("Worker", 0)
    policy = spec.run_policy.scheduling_policy
    minimum = workers
    if policy is not None and policy.min_available is not None:
        minimum = max(0, min(workers, policy.min_available - launchers))
    at_start = 0 if spec.launcher_creation_policy == "WaitForWorkersReady" else launchers
    roles = {LAUNCHER: Role(at_start, launchers, launchers), WORKER: Role(minimum, minimum, workers)}
    return Description(Shape(roles), ended_by(job.status.conditions, ("Succeeded", "Failed"), spec.run_policy.suspend))


MPIJOB = Source(NAME, MPIJob, member, describe)
