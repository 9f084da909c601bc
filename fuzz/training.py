"""Training jobs that the real controller carries: submitted, suspended and resumed, ranks failed, till success."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from fuzz.ranks import Ranks
from fuzz.workload import GPU, JobSpec, away_from, jobs_path, pods_path
from muster.api.names import ANNOTATION_SCALE_UP, APPROVED, WORKER_CONTAINER
from muster.embedded.item import Item
from muster.embedded.objects import section
from muster.kube.errors import ApiError, NotFound
from muster.sim.virtual.cluster import VirtualCluster

RESOURCE = "trainingjobs.muster.dev"
_LIMIT = 1000
"""Of faults that are not the program's: no job fails for them here."""
_AGAIN_S = 2.0
_COLLECTED_S = 3.0
_OVER = ("Succeeded", "Deleted")


def training_job(spec: JobSpec) -> dict[str, Any]:
    """The job as its user submits it."""
    body: dict[str, Any] = {
        "replicas": spec.size,
        "gpusPerNode": spec.gpus,
        "nodeSharing": "Exclusive" if spec.whole else "Shared",
        "ranksPerNode": 1,
        "launcher": spec.launcher,
        "image": "train",
        "command": ["train"],
        "backoffLimit": len(spec.restarts),
        "infrastructureLimit": _LIMIT,
        "unknownLimit": _LIMIT,
        "stopGraceSeconds": spec.grace_s,
    }
    if spec.restartable is not None:
        body["restartable"] = spec.restartable
    if spec.priority_class:
        body["priorityClassName"] = spec.priority_class
    if spec.grace_s:
        body["checkpoint"] = {"path": "/checkpoints"}
    if spec.cpu_milli or spec.pool or spec.models:
        body["template"] = {"spec": _template(spec)}
    if spec.borrow:
        body["borrow"] = True
    meta: dict[str, Any] = {"name": spec.name}
    if spec.approved:
        meta["annotations"] = {ANNOTATION_SCALE_UP: APPROVED}
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "metadata": meta, "spec": body}


def _template(spec: JobSpec) -> dict[str, Any]:
    """Returns the users' part of the template of its pods."""
    own = {name: amount for name, amount in spec.limits.items() if name != GPU}
    template: dict[str, Any] = {"containers": [{"name": WORKER_CONTAINER, "resources": {"limits": own}}]}
    if spec.pool:
        template["nodeSelector"] = {"pool": spec.pool}
    if spec.models:
        template["affinity"] = spec.models_rule
    return template


class Training:
    """Changes of users to the training jobs of a run.

    Args:
        cluster: where they are.
        ranks: of all jobs.
        specs: the jobs.

    Attributes:
        specs: the jobs, by name.
        failed: how often a rank of a job was made to fail, by name.
    """

    def __init__(self, cluster: VirtualCluster, ranks: Ranks, specs: list[JobSpec]) -> None:
        self._cluster, self._ranks = cluster, ranks
        self.specs = {spec.name: spec for spec in specs}
        self._phases: dict[str, str] = {}
        self._live: dict[str, set[str]] = {spec.name: set() for spec in specs}
        self.failed = {spec.name: 0 for spec in specs}
        cluster.core.store.listeners.append(self._changed)

    @property
    def unfinished(self) -> list[str]:
        """Jobs that are not over, and are to be some time."""
        return [
            name
            for name, spec in sorted(self.specs.items())
            if not spec.endless and (self._phases.get(name) not in _OVER or self._live[name])
        ]

    def runs(self, name: str) -> bool:
        """Returns whether the job's status says that it runs."""
        return self._phases.get(name) == "Running"

    def is_over(self, name: str) -> bool:
        """Returns whether the job has succeeded, or was deleted."""
        return self._phases.get(name) in _OVER

    def waits(self, name: str) -> bool:
        """Returns whether the job's status says that it waits for nodes."""
        return self._phases.get(name) == "Pending"

    def delete(self, name: str) -> None:
        """Delete a job, and then its pods, as the garbage collector does."""
        spec = self.specs[name]
        self._cluster.call("DELETE", spec.path)
        self._phases[name] = "Deleted"
        self._cluster.loop.call_later(_COLLECTED_S, self._collect, spec)

    def _collect(self, spec: JobSpec) -> None:
        """Delete the pods of a deleted job, until all are gone."""
        pods = self._cluster.call("GET", pods_path(spec.namespace))["items"]
        for pod in pods:
            labels = section(pod["metadata"], "labels")
            if labels.get("muster.dev/gang") == spec.name and "deletionTimestamp" not in pod["metadata"]:
                with contextlib.suppress(NotFound):
                    self._cluster.call("DELETE", f"{pods_path(spec.namespace)}/{pod['metadata']['name']}")
        if self._live[spec.name]:
            self._cluster.loop.call_later(_COLLECTED_S, self._collect, spec)

    async def change(self, name: str, size: int, excluded: str) -> None:
        """Suspend a job, change its size and keep it away from a node if one is named, and resume it."""
        path = self.specs[name].path
        spec: dict[str, Any] = {"replicas": size}
        if excluded:
            spec["template"] = {"spec": {"affinity": {"nodeAffinity": away_from(excluded)}}}
        for patch in ({"suspend": True}, spec, {"suspend": None}):
            with contextlib.suppress(ApiError):
                self._cluster.call("PATCH", path, {"spec": patch})
            await asyncio.sleep(_COLLECTED_S)

    def begin(self) -> None:
        """Have everything happen in its time from now on."""
        loop = self._cluster.loop
        for name, spec in self.specs.items():
            loop.call_later(spec.arrives_s, self._cluster.call, "POST", jobs_path(spec.namespace), training_job(spec))
            for at in spec.restarts:
                loop.call_later(spec.arrives_s + at, self._fail_a_rank, name)
            if spec.suspended is not None:
                for at, suspend in zip(spec.suspended, (True, False), strict=True):
                    loop.call_later(max(at, spec.arrives_s), self._suspend, name, suspend)

    def _suspend(self, name: str, suspend: bool) -> None:
        if self._phases.get(name) not in _OVER:
            self._cluster.call("PATCH", self.specs[name].path, {"spec": {"suspend": suspend}})

    def _fail_a_rank(self, name: str) -> None:
        """Have a rank exit with 1, once ranks run."""
        if self._phases.get(name) in _OVER:
            return
        running = [one for one in self._ranks.of(self.specs[name].key) if one.state == "running"]
        if self._phases.get(name) != "Running" or not running:
            self._cluster.loop.call_later(_AGAIN_S, self._fail_a_rank, name)
            return
        self.failed[name] += 1
        running[self.failed[name] % len(running)].fail_rank(1)

    def _changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        item = new or old
        assert item is not None
        if resource == RESOURCE and item.name in self.specs and self._phases.get(item.name) != "Deleted":
            self._phases[item.name] = section(item.object(), "status").get("phase", "")
        elif resource == "pods":
            live = self._live.get(item.labels.get("muster.dev/gang", ""))
            if live is not None:
                ended = new is None or new.fields.get("status.phase") in ("Succeeded", "Failed")
                live.discard(item.uid) if ended else live.add(item.uid)
