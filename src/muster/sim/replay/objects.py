"""Creates the Kubernetes objects of replayed nodes and jobs. It does not decode JSON, because there are many pods."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from muster.api.names import (
    ANNOTATION_ATTEMPT,
    ANNOTATION_GANG_SIZE,
    ANNOTATION_GANG_UID,
    LABEL_GANG,
    LABEL_SLOT,
    LABEL_USER,
)
from muster.api.names import SCHEDULER_NAME as MUSTER
from muster.kube.objects.affinity import Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from muster.kube.objects.container import Container, ResourceRequirements
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node, NodeCondition, NodeSpec, NodeStatus
from muster.kube.objects.pod import Pod, PodSpec
from muster.sim.replay.job import Job, NodeShape, Shape

GPU = "nvidia.com/gpu"
GPU_MODEL = "nvidia.com/gpu.product"
"""The label that NVIDIA's GPU feature discovery puts on nodes."""
NAMESPACE = "replay"
START_S = 1_700_000_000
"""Start of the virtual time, in seconds since the epoch, for times in objects."""


def node_of(shape: NodeShape, ready: bool) -> Node:
    """Return the node."""
    room = {"pods": "110", **_amounts(shape)}  # 110: the kubelet's default
    return Node(
        metadata=ObjectMeta(
            name=shape.name, uid=f"uid-{shape.name}", labels={GPU_MODEL: shape.model} if shape.model else {}
        ),
        spec=NodeSpec(),
        status=NodeStatus(
            allocatable={**room}, conditions=(NodeCondition(type="Ready", status="True" if ready else "False"),)
        ),
    )


class PodMaker:
    """Creates pods of a job at one moment. They share all fields except name and slot.

    Args:
        job: the job of the pods.
        attempt: the attempt for which they are created.
        now: seconds since the epoch.
    """

    def __init__(self, job: Job, attempt: int, now: float) -> None:
        self._job = job
        self._attempt = attempt
        self._created = datetime.fromtimestamp(int(now), UTC)
        self._spec = _spec(job.shape, job.priority, job.limit_s, job.image)
        self._labels = {LABEL_USER: job.user} if job.user else {}
        self._annotations: dict[str, str] = {}
        if job.gang:
            self._annotations = {
                ANNOTATION_GANG_SIZE: str(job.members),
                ANNOTATION_GANG_UID: job.name,
                ANNOTATION_ATTEMPT: str(attempt),
            }

    def pod(self, slot: int) -> Pod:
        """Return the pod of a slot."""
        job = self._job
        uid = f"{job.name}-{slot}-{self._attempt}"
        return Pod(
            metadata=ObjectMeta(
                name=uid,
                namespace=NAMESPACE,
                uid=uid,
                creation_timestamp=self._created,
                labels={**self._labels, LABEL_GANG: job.name, LABEL_SLOT: str(slot)} if job.gang else self._labels,
                annotations=self._annotations,
            ),
            spec=self._spec,
        )


def _amounts(shape: NodeShape | Shape) -> dict[str, str]:
    """Returns the resources of a node or pod; resources that are 0 are left out."""
    amounts = {GPU: (shape.gpus, ""), "cpu": (shape.cpu_milli, "m"), "memory": (shape.memory_mib, "Mi")}
    return {resource: f"{value}{unit}" for resource, (value, unit) in amounts.items() if value}


@lru_cache(maxsize=4096)
def _spec(shape: Shape, priority: int, limit_s: int | None, image: str) -> PodSpec:
    """Return the pod spec; pods with the same request share one object."""
    affinity = None
    if shape.models:
        rule = NodeSelectorRequirement(key=GPU_MODEL, operator="In", values=shape.models)
        required = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(rule,)),))
        affinity = Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required))
    return PodSpec(
        scheduler_name=MUSTER,
        containers=(Container(name="worker", image=image, resources=ResourceRequirements(limits={**_amounts(shape)})),),
        affinity=affinity,
        priority=priority,
        active_deadline_seconds=limit_s,
    )
