"""What users submit in a run, and the model of their jobs' owner: it makes pods, replaces broken ones, ends jobs.

The owner stands for any controller of gang pods. It works next to the API server and never fails: the scheduler is
under test here, and what it finds must not depend on another controller's luck.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from fuzz.shapes import APART, LABEL_APART, LABEL_GROUP, POD_GROUPS, pod_group
from muster.api.names import (
    ANNOTATION_ATTEMPT,
    ANNOTATION_GANG_SIZE,
    ANNOTATION_GANG_UID,
    ANNOTATION_RESTARTABLE,
    LABEL_BORROWED,
    LABEL_GANG,
    LABEL_SLOT,
)
from muster.embedded.item import Item
from muster.embedded.objects import section, timestamp
from muster.kube.errors import Conflict, Invalid, NotFound
from muster.sim.replay.objects import GPU_MODEL
from muster.sim.virtual.cluster import VirtualCluster

GPU = "nvidia.com/gpu"
NAMESPACE = "default"
LOOK_S = 0.5
"""The owner reacts to a change of a job after this."""
DETECT_S = 8.0
"""A node is lost for this long before the owner replaces its pods."""
ANSWER_S = 1.0
"""A gang whose job answers leaves its nodes so long after it was asked to."""
_ENDED = ("Succeeded", "Failed")
_OVER = ("Succeeded", "Deleted")


class JobSpec(msgspec.Struct, frozen=True):
    """One job.

    Attributes:
        name: of the job and its gang; of the pod where `single`.
        size: pods, each on a node of its own.
        gpus: of each pod.
        arrives_s: after the start of the run.
        runs_s: from the moment all pods run.
        priority_class: of its pods.
        tolerates: a taint key its pods tolerate.
        pool: value of the node label `pool` it asks for; "" for any.
        grace_s: how long its pods take to end.
        restarts: after so many seconds of running one pod fails, each once.
        suspended: (from, to) in seconds after the start: it is suspended meanwhile.
        single: a pod that is not a gang.
        endless: it need not be over at the end: it runs on, or is too large ever to run.
        limit_s: the time limit of a gang; 0 for none. It suffices, whatever happens.
        group: a gang by a PodGroup of Coscheduling, not by a TrainingJob.
        apart: no two pods of jobs that are `apart` run in one zone.
        namespace: where it is submitted, which says whose it is.
        borrow: it uses nodes that other teams own, too.
        approved: nodes may be added for it.
        cpu_milli, memory_mib: of each pod, where its source says so.
        models: GPU models it accepts; all where empty.
        whole: it has its nodes to itself.
        launcher: of its ranks.
        restartable: what it declares: that it may be stopped and started again at little cost, or not, or nothing.
        answers: it saves its work and leaves soon after it is asked to; else it is stopped after its grace.
        restores: its ranks agree on the checkpoint that they restore; some of its checkpoints are damaged.
        rank_shares: how much of its work the ranks of each node do, by node rank in turn; all of it where empty.
    """

    name: str
    size: int
    gpus: int
    arrives_s: float
    runs_s: float
    priority_class: str = ""
    tolerates: str = ""
    pool: str = ""
    grace_s: int = 2
    restarts: tuple[float, ...] = ()
    suspended: tuple[float, float] | None = None
    single: bool = False
    endless: bool = False
    limit_s: int = 0
    group: bool = False
    apart: bool = False
    namespace: str = NAMESPACE
    borrow: bool = False
    approved: bool = False
    cpu_milli: int = 0
    memory_mib: int = 0
    models: tuple[str, ...] = ()
    whole: bool = False
    launcher: str = "mpi"
    rank_shares: tuple[float, ...] = ()
    restartable: bool | None = None
    answers: bool = False
    restores: bool = False

    @property
    def path(self) -> str:
        """Of its TrainingJob."""
        return f"{jobs_path(self.namespace)}/{self.name}"

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def limits(self) -> dict[str, str]:
        """Returns the limits of each pod."""
        asked = {"cpu": f"{self.cpu_milli}m" if self.cpu_milli else "1"}
        if self.memory_mib:
            asked["memory"] = f"{self.memory_mib}Mi"
        return {GPU: str(self.gpus), **asked} if self.gpus else asked

    @property
    def models_term(self) -> dict[str, Any]:
        """Returns the job's requirement on its nodes' GPU model."""
        return {"key": GPU_MODEL, "operator": "In", "values": list(self.models)}

    @property
    def models_rule(self) -> dict[str, Any]:
        """The affinity to nodes with the models it accepts."""
        terms = {"nodeSelectorTerms": [{"matchExpressions": [self.models_term]}]}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def jobs_path(namespace: str) -> str:
    """The training jobs of a namespace."""
    return f"/apis/muster.dev/v1alpha1/namespaces/{namespace}/trainingjobs"


def pods_path(namespace: str) -> str:
    """The pods of a namespace."""
    return f"/api/v1/namespaces/{namespace}/pods"


def away_from(*nodes: str) -> dict[str, Any]:
    """The node affinity of pods that may not run on these nodes."""
    field = {"key": "metadata.name", "operator": "NotIn", "values": sorted(nodes)}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": terms}


class Job:
    """A job under way."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.uid = ""
        self.attempt = 0
        self.phase = ""
        self.pods: dict[str, Item] = {}
        self.started_at: float | None = None
        self.failed = 0
        self.began = ""
        self.lost: dict[str, float] = {}
        self.without: dict[str, list[str]] = {}
        self.excluded: set[str] = set()
        self.done_s = 0.0
        self.asked = 0


class Owner:
    """Carries all jobs of a run from submission to success.

    Args:
        cluster: where they are.
        specs: the jobs.
        is_off: whether a node's machine is off for good. Its deleted pods stay until the Node object goes (Kubernetes
            docs, "Non-graceful node shutdown handling").
    """

    def __init__(
        self, cluster: VirtualCluster, specs: list[JobSpec], is_off: Callable[[str], bool] = lambda node: False
    ) -> None:
        self.jobs = {spec.name: Job(spec) for spec in specs}
        self._cluster, self._is_off = cluster, is_off
        self._looking: set[str] = set()
        cluster.core.store.listeners.append(self._changed)

    @property
    def unfinished(self) -> list[str]:
        """Jobs that are not over, and are to be some time."""
        return sorted(name for name, job in self.jobs.items() if not (self._is_over(job) or job.spec.endless))

    def _is_over(self, job: Job) -> bool:
        """Returns whether the job has succeeded and its pods are gone, except deleted ones on machines that are off."""
        left = (item for item in job.pods.values() if not self._stays(item))
        return job.phase in _OVER and next(left, None) is None

    def _stays(self, item: Item) -> bool:
        return item.terminating and self._is_off(item.fields.get("spec.nodeName", ""))

    async def run(self) -> None:
        """Submit the jobs as they arrive; what follows happens by itself."""
        start = self._cluster.loop.now
        for job in sorted(self.jobs.values(), key=lambda job: job.spec.arrives_s):
            self._cluster.loop.call_at(start + job.spec.arrives_s, self._submit, job)
            if job.spec.suspended is not None:
                for at in job.spec.suspended:
                    self._cluster.loop.call_at(start + at, self._look_soon, job.spec.name)
        self._start = start
        await asyncio.sleep(0)

    def _submit(self, job: Job) -> None:
        job.phase = "Pending"
        if job.spec.group:
            self._cluster.call("POST", POD_GROUPS, pod_group(job.spec.name, job.spec.size))
        elif not job.spec.single:
            spec: dict[str, Any] = {"replicas": job.spec.size, "gpusPerNode": job.spec.gpus, "command": ["true"]}
            spec["stopGraceSeconds"] = job.spec.grace_s
            if job.spec.restartable is not None:
                spec["restartable"] = job.spec.restartable
            if job.spec.limit_s:
                spec["timeLimitSeconds"] = job.spec.limit_s
            body = {
                "apiVersion": "muster.dev/v1alpha1",
                "kind": "TrainingJob",
                "metadata": {"name": job.spec.name},
                "spec": spec,
            }
            job.uid = self._cluster.call("POST", jobs_path(job.spec.namespace), body)["metadata"]["uid"]
        self._look(job)

    def _changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        if resource == "placements.muster.dev" and new is not None:
            self._asked(old, new)
        if resource == "nodes":
            for job in self.jobs.values():
                if job.phase in ("Pending", "Running"):
                    self._look_soon(job.spec.name)
        if resource != "pods":
            return
        item = new or old
        assert item is not None
        owned = self.jobs.get(item.labels.get("job", ""))
        if owned is None:
            return
        if new is None:
            owned.pods.pop(item.name, None)
        else:
            owned.pods[item.name] = new
        if owned.phase:
            self._look_soon(owned.spec.name)

    def _asked(self, old: Item | None, new: Item) -> None:
        """Note a request to leave, and answer it if the job does."""
        before = section(old.object(), "status") if old is not None else {}
        status, spec = section(new.object(), "status"), section(new.object(), "spec")
        job = self.jobs.get(spec["gang"])
        if job is None or job.uid != spec["gangUID"]:
            return
        if status.get("phase") != "Preempting" or before.get("phase") == "Preempting":
            return
        if status.get("reason") == "Backfilled":
            job.asked += 1
            self._cluster.loop.call_later(0.0, self._count, job)
        if job.spec.answers:
            self._cluster.loop.call_later(ANSWER_S, self._give_way, job)

    def _count(self, job: Job) -> None:
        """Write how often the job was asked to leave, as the controller of training jobs does."""
        with contextlib.suppress(NotFound):
            status = {"backfill": {"asked": job.asked}}
            self._cluster.call("PATCH", f"{job.spec.path}/status", {"status": status})

    def _give_way(self, job: Job) -> None:
        """Have a job save its work and leave its nodes; it waits again, to do the rest."""
        if job.phase not in ("Pending", "Running"):
            return
        if job.started_at is not None:
            job.done_s += self._cluster.loop.now - job.started_at
        self._say(job, "Pending")
        self._remove_all(job)

    def waits(self, name: str) -> bool:
        """Returns whether the job has pods, and none of them has a node."""
        pods = self.jobs[name].pods.values()
        return self.jobs[name].phase == "Pending" and bool(pods) and not any(self._node_of(item) for item in pods)

    def delete(self, name: str) -> None:
        """Delete a job, and then its pods, as the garbage collector does."""
        job = self.jobs[name]
        job.phase = "Deleted"
        self._cluster.call("DELETE", job.spec.path)
        self._remove_all(job)

    def change(self, name: str, size: int, excluded: str) -> None:
        """Recreate the pods of a job with another size, and keep them away from a node if one is named.

        The API server refuses another size of a job that has begun: the user changes it while the job is suspended.
        """
        job = self.jobs[name]
        job.spec = msgspec.structs.replace(job.spec, size=size)
        job.excluded |= {excluded} - {""}
        try:
            self._cluster.call("PATCH", job.spec.path, {"spec": {"replicas": size}})
        except Invalid:
            self._cluster.call("PATCH", job.spec.path, {"spec": {"suspend": True, "replicas": size}})
            self._cluster.call("PATCH", job.spec.path, {"spec": {"suspend": None}})
        self._remove_all(job)

    def _node_of(self, item: Item) -> str:
        return str(item.fields.get("spec.nodeName", ""))

    def _look_soon(self, name: str) -> None:
        if name not in self._looking:
            self._looking.add(name)
            self._cluster.loop.call_later(LOOK_S, self._look_now, name)

    def _look_now(self, name: str) -> None:
        self._looking.discard(name)
        if self.jobs[name].phase:
            self._look(self.jobs[name])

    def _look(self, job: Job) -> None:
        now = self._cluster.loop.now
        if job.phase in _OVER:
            return
        if self._suspended(job, now):
            if job.phase != "Suspended":
                self._say(job, "Suspended")
                self._remove_all(job)
            return
        if job.phase == "Suspended":
            if job.pods:
                return
            self._say(job, "Pending")
        self._replace_broken(job, now)
        running = [item for item in job.pods.values() if self._runs(item)]
        if len(running) < job.spec.size:
            job.started_at = None
            return
        if job.started_at is None:
            job.started_at = now
            self._say(job, "Running")
        self._go_on(job, now)

    def _go_on(self, job: Job, now: float) -> None:
        assert job.started_at is not None
        ran_s = now - job.started_at + job.done_s
        if job.failed < len(job.spec.restarts) and ran_s >= job.spec.restarts[job.failed]:
            job.failed += 1
            victim = sorted(job.pods)[job.failed % len(job.pods)]
            self._patch_status(job.pods[victim], {"status": {"phase": "Failed"}})
            return
        if ran_s >= job.spec.runs_s:
            self._say(job, "Succeeded")
            self._remove_all(job)
            return
        due_s = min(job.spec.runs_s, *job.spec.restarts[job.failed : job.failed + 1], float("inf"))
        if due_s != float("inf"):
            self._cluster.loop.call_at(job.started_at + due_s - job.done_s, self._look_soon, job.spec.name)

    def _replace_broken(self, job: Job, now: float) -> None:
        """Delete broken pods and recreate each missing one, all under one new attempt."""
        live: dict[int, Item] = {}
        for item in list(job.pods.values()):
            if item.terminating:
                continue
            useless = not item.fields.get("spec.nodeName") and self._excludes_a_healthy_node(job, item)
            if useless or item.fields.get("status.phase") in _ENDED or self._node_lost(job, item, now):
                self._delete(item)
            else:
                live[int(item.labels["slot"])] = item
        missing = [slot for slot in range(job.spec.size) if slot not in live]
        if not missing:
            return
        if job.phase == "Running":
            self._say(job, "Pending")
            job.started_at = None
        for slot in missing:
            self._cluster.call("POST", pods_path(job.spec.namespace), self._pod(job, slot))
        job.attempt += 1  # the next pods' number

    def _node_lost(self, job: Job, item: Item, now: float) -> bool:
        node = item.fields.get("spec.nodeName", "")
        if not node:
            return False
        found = self._cluster.core.store.define("nodes").items.get(node)
        if found is not None and found.fields.get("ready") == "True":
            job.lost.pop(node, None)
            return False
        since = job.lost.setdefault(node, now)
        if now - since < DETECT_S:
            self._cluster.loop.call_at(since + DETECT_S, self._look_soon, job.spec.name)
            return False
        return True

    def _excludes_a_healthy_node(self, job: Job, item: Item) -> bool:
        """Returns whether a waiting pod excludes a node that is well again: the job may need it."""
        nodes = self._cluster.core.store.define("nodes").items
        well = [name for name in job.lost if name in nodes and nodes[name].fields.get("ready") == "True"]
        for name in well:
            del job.lost[name]
        return any(name not in job.lost for name in job.without.get(item.name, ()))

    def _runs(self, item: Item) -> bool:
        return item.fields.get("status.phase") == "Running" and not item.terminating

    def _suspended(self, job: Job, now: float) -> bool:
        window = job.spec.suspended
        return window is not None and self._start + window[0] <= now < self._start + window[1]

    def _say(self, job: Job, phase: str) -> None:
        job.phase = phase
        if not (job.spec.single or job.spec.group):
            status: dict[str, Any] = {"phase": phase, "attempt": job.attempt}
            if phase == "Running" and not job.began:
                job.began = status["startTime"] = timestamp(self._cluster.loop.now)
            body = {"status": status}
            self._cluster.call("PATCH", f"{job.spec.path}/status", body)

    def _remove_all(self, job: Job) -> None:
        job.started_at = None
        if job.spec.group and job.phase == "Succeeded":
            self._cluster.call("DELETE", f"{POD_GROUPS}/{job.spec.name}")
        for item in list(job.pods.values()):
            if not item.terminating:
                self._delete(item)

    def _delete(self, item: Item) -> None:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": item.uid}}
        with contextlib.suppress(NotFound, Conflict):
            self._cluster.call("DELETE", f"{pods_path(item.namespace)}/{item.name}", options)

    def _patch_status(self, pod: Item, patch: dict[str, Any]) -> None:
        with contextlib.suppress(NotFound):
            self._cluster.call("PATCH", f"{pods_path(pod.namespace)}/{pod.name}/status", patch)

    def _pod(self, job: Job, slot: int) -> dict[str, Any]:
        spec, attempt = job.spec, job.attempt
        meta: dict[str, Any] = {
            "name": f"{spec.name}-{slot}-{attempt}",
            "labels": {"job": spec.name, "slot": str(slot), "size": str(spec.size), "attempt": str(attempt)},
        }
        if spec.restartable and (spec.single or spec.group):
            meta["annotations"] = {ANNOTATION_RESTARTABLE: "true"}
        if spec.group:
            meta["labels"][LABEL_GROUP] = spec.name
        elif not spec.single:
            meta["labels"] |= {LABEL_GANG: spec.name, LABEL_SLOT: str(slot)}
            meta["annotations"] = {
                ANNOTATION_GANG_SIZE: str(spec.size),
                ANNOTATION_GANG_UID: job.uid,
                ANNOTATION_ATTEMPT: str(attempt),
            }
            owner = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "name": spec.name, "uid": job.uid}
            meta["ownerReferences"] = [owner | {"controller": True}]
        body: dict[str, Any] = {
            "schedulerName": "muster",
            "terminationGracePeriodSeconds": spec.grace_s,
            "containers": [{"name": "worker", "image": "none", "resources": {"limits": spec.limits}}],
        }
        if spec.priority_class:
            body["priorityClassName"] = spec.priority_class
        if spec.tolerates:
            body["tolerations"] = [{"key": spec.tolerates, "operator": "Exists"}]
        if spec.pool:
            body["nodeSelector"] = {"pool": spec.pool}
        if spec.borrow:
            meta["labels"][LABEL_BORROWED] = "true"
        if spec.models:
            body["affinity"] = spec.models_rule
        if spec.apart:
            meta["labels"][LABEL_APART] = "yes"
            body["affinity"] = APART
        if job.lost or job.excluded:
            job.without[meta["name"]] = sorted(job.lost)
            field = {"key": "metadata.name", "operator": "NotIn", "values": sorted({*job.lost, *job.excluded})}
            term: dict[str, Any] = {"matchFields": [field]}
            if spec.models:
                term["matchExpressions"] = [spec.models_term]
            affinity = {"nodeSelectorTerms": [term]}
            needs = {"requiredDuringSchedulingIgnoredDuringExecution": affinity}
            body["affinity"] = {**body.get("affinity", {}), "nodeAffinity": needs}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body}
