"""A world in which the workloads of others exist: their objects and their pods, as their controllers make them."""

from __future__ import annotations

import itertools
from typing import Any

from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict
from muster.scheduler.gangs.adapters import SOURCES
from muster.scheduler.gangs.adapters.membership import Workload
from muster.scheduler.plan import Plan, WritePlacement
from muster.scheduler.reasons import Reason
from muster.scheduler.state import ClusterState
from tests.unit.scheduler.world import World


class Foreign(World):
    """A world in which objects of others exist too, made and changed as their JSON."""

    def __init__(self, **settings: float) -> None:
        super().__init__(**settings)
        self.objects: dict[tuple[str, str], Workload] = {}
        self._uids = itertools.count(1)

    def set_object(self, source: str, name: str, spec: dict[str, Any], *, uid: str = "", **status: Any) -> Workload:
        old = self.objects.get((source, name))
        uid = uid or (old.ref.uid if old is not None else f"uid-{name}-{next(self._uids)}")
        workload = read(source, name, spec, uid, **status)
        self.objects[source, name] = workload
        self.state.set_workload(workload, self.now)
        return workload

    def remove_object(self, source: str, name: str) -> None:
        self.state.remove_workload(self.objects.pop((source, name)).ref)

    def owner(self, source: str, name: str) -> dict[str, Any]:
        workload = self.objects[source, name]
        return {
            "apiVersion": workload.owner.api_version,
            "kind": workload.owner.kind,
            "name": name,
            "uid": workload.ref.uid,
            "controller": True,
        }

    def listed(self) -> ClusterState:
        """What one knows who has just listed everything: pods first, objects last."""
        state = super().listed()
        for workload in self.objects.values():
            state.set_workload(workload, self.now)
        for source in SOURCES:
            state.workloads_listed(source)
        return state

    def ran_on(self, *pods: str) -> dict[str, str]:
        found = {pod.name: pod.spec.node_name for pod in self.pods.values() if pod.spec.node_name}
        return {name: found[name] for name in pods} if pods else found

    def waits(self, gang: str) -> Reason | None:
        return self.run().waiting.get(self.gang(gang).key)

    # Pods as the controllers of others make them

    def job_pod(self, job: str, index: int, suffix: str = "a", **meta: Any) -> Pod:
        labels = {"batch.kubernetes.io/job-completion-index": str(index), "batch.kubernetes.io/job-name": job}
        return self.add_pod(f"{job}-{index}-{suffix}", {}, labels=labels, owners=[self.owner("job", job)], **meta)

    def set_pod_of(self, name: str, index: int, **meta: Any) -> Pod:
        labels = {"apps.kubernetes.io/pod-index": str(index)}
        return self.add_pod(f"{name}-{index}", {}, labels=labels, owners=[self.owner("statefulset", name)], **meta)

    def grouped(self, group: str, name: str, **meta: Any) -> Pod:
        return self.add_pod(name, {}, labels={"scheduling.x-k8s.io/pod-group": group}, **meta)

    def mpi_pod(self, job: str, role: str, index: int = 0, suffix: str = "") -> Pod:
        prefix = "training.kubeflow.org/"
        labels = {f"{prefix}operator-name": "mpi-operator", f"{prefix}job-name": job, f"{prefix}job-role": role}
        if role == "launcher":
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"{job}-launcher", "uid": "j", "controller": True}
            return self.add_pod(f"{job}-launcher{suffix}", {"gpus": 0}, labels=labels, owners=[owner])
        labels[f"{prefix}replica-index"] = str(index)
        return self.add_pod(f"{job}-worker-{index}", {}, labels=labels, owners=[self.owner("mpijob", job)])

    def ray_pod(self, cluster: str, name: str, group: str = "") -> Pod:
        labels = {"ray.io/cluster": cluster, "ray.io/node-type": "worker" if group else "head", "ray.io/group": group}
        spec = {} if group else {"gpus": 0}
        return self.add_pod(name, spec, labels=labels, owners=[self.owner("raycluster", cluster)])


def read(source: str, name: str, spec: dict[str, Any], uid: str = "u", **status: Any) -> Workload:
    adapter = SOURCES[source]
    body = {"metadata": {"name": name, "namespace": "default", "uid": uid}, "spec": spec, "status": status}
    return adapter.workload(from_dict(body, adapter.kind))


def placements(plan: Plan) -> list[dict[int, str]]:
    """Slot -> node of each placement that a plan writes."""
    writes = [action for action in plan.actions if isinstance(action, WritePlacement)]
    return [{slot.slot: slot.node for slot in action.placement.spec.slots} for action in writes]
