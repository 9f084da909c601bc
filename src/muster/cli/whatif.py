"""The cluster as the scheduler sees it, as it is or as it would be."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from muster.api.names import LABEL_GANG
from muster.api.placement import Placement
from muster.api.training_job import TrainingJob
from muster.cli.describe import finished
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.kube.client import Client
from muster.kube.meta import ObjectMeta
from muster.kube.node import Node
from muster.kube.pod import Pod
from muster.kube.quantity import QuantityError, parse_quantity
from muster.kube.struct import from_dict
from muster.scheduler.state import ClusterState

_EXPLAINED_UID = "explained"


class Changes(NamedTuple):
    """How the cluster would differ: more nodes, fewer nodes, jobs that had ended."""

    plus_nodes: int = 0
    without_nodes: tuple[str, ...] = ()
    if_ended: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether anything would differ."""
        return self != Changes()


class View(NamedTuple):
    """What the scheduler reads, listed from the API server at one moment."""

    nodes: list[Node]
    pods: list[Pod]
    placements: list[Placement]
    jobs: list[TrainingJob]

    @classmethod
    async def read(cls, client: Client) -> View:
        """List everything."""
        return cls(
            (await client.list_all(Node)).items,
            (await client.list_all(Pod)).items,
            (await client.list_all(Placement)).items,
            (await client.list_all(TrainingJob)).items,
        )

    def changed(self, changes: Changes, namespace: str) -> View:
        """The view as it would be; raises CliError where a node or job is not there."""
        nodes = self.nodes
        for name in changes.without_nodes:
            if not any(node.name == name for node in nodes):
                raise CliError(f"no node '{name}'", "kubectl get nodes lists them", ExitCode.NOT_FOUND)
            nodes = [node for node in nodes if node.name != name]
        if changes.plus_nodes:
            nodes = [*nodes, *more_like(self.nodes, changes.plus_nodes)]
        pods, placements = self.pods, self.placements
        for name in changes.if_ended:
            if not any((job.namespace, job.name) == (namespace, name) for job in self.jobs):
                raise CliError(f"no training job '{name}' in namespace {namespace}", "", ExitCode.NOT_FOUND)
            pods = [pod for pod in pods if (pod.namespace, pod.metadata.labels.get(LABEL_GANG)) != (namespace, name)]
            placements = [each for each in placements if (each.namespace, each.spec.gang) != (namespace, name)]
        return View(nodes, pods, placements, self.jobs)

    def with_job(self, job: TrainingJob) -> View:
        """The view with a job's pods waiting, although it was not created."""
        from muster.trainingjobs.pods import PodSettings, build_pod

        settings = PodSettings(url="https://explained", ca_pem="", muster_image="explained")
        made = msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, uid=_EXPLAINED_UID))
        pods = []
        for slot in range(job.spec.replicas):
            pod = from_dict(build_pod(made, slot, 1, (), settings), Pod)
            metadata = msgspec.structs.replace(
                pod.metadata, uid=f"{_EXPLAINED_UID}-{slot}", creation_timestamp=datetime.now(UTC)
            )
            pods.append(msgspec.structs.replace(pod, metadata=metadata))
        return self._replace(pods=[*self.pods, *pods], jobs=[*self.jobs, made])

    def state(self) -> ClusterState:
        """The scheduler's own view of it."""
        now = time.time()
        state = ClusterState()
        for node in self.nodes:
            state.set_node(node)
        for job in self.jobs:
            state.set_job(job.uid, job.status.phase if finished(job) else "")
        state.jobs_synced()
        for placement in self.placements:
            state.set_placement(placement, now)
        for pod in self.pods:
            state.set_pod(pod, now)
        return state


def more_like(nodes: list[Node], count: int) -> list[Node]:
    """That many ready, empty nodes like the largest one there is."""
    if not nodes:
        raise BadInput("--plus-nodes needs a node to take as the pattern, and the cluster has none")
    largest = max(nodes, key=_size)
    made = []
    for number in range(1, count + 1):
        name = f"{largest.name}-plus-{number}"
        labels = {**largest.metadata.labels, "kubernetes.io/hostname": name}
        spec = msgspec.structs.replace(largest.spec, taints=(), unschedulable=False)
        conditions = tuple(
            msgspec.structs.replace(each, status="True" if each.type == "Ready" else "False")
            for each in largest.status.conditions
        )
        made.append(
            msgspec.structs.replace(
                largest,
                metadata=ObjectMeta(name=name, uid=name, labels=labels, creation_timestamp=datetime.now(UTC)),
                spec=spec,
                status=msgspec.structs.replace(largest.status, conditions=conditions),
            )
        )
    return made


def _size(node: Node) -> tuple[float, float]:
    """Devices first, then CPUs."""
    amounts = {}
    for name, text in node.status.allocatable.items():
        try:
            amounts[name] = float(parse_quantity(text))
        except QuantityError:
            continue
    return (sum(amount for name, amount in amounts.items() if "/" in name), amounts.get("cpu", 0.0))
