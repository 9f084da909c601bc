"""The sides: how pods say their gang, what objects a gang has beside them, and which process schedules."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.controller import controller, served
from bench.gang_spike.cluster import SYSTEM, Cluster
from bench.gang_spike.shape import NAMESPACE, Fields, InGang
from muster.api.names import ANNOTATION_GANG_SIZE, ANNOTATION_GANG_UID, LABEL_GANG, LABEL_SLOT, SCHEDULER_NAME
from muster.controlplane.children import Child
from muster.controlplane.goprograms import find_built
from muster.controlplane.programs import find_binaries

QPS = 10_000
"""The peers' client limit: none, at the speeds there are."""
_KUBE_SCHEDULER = "default-scheduler"
_NATIVE_GATES = {"GenericWorkload": True, "GangScheduling": True}
_COSCHEDULING_API = "scheduling.x-k8s.io/v1alpha1"
_COSCHEDULING_LABEL = "scheduling.x-k8s.io/pod-group"

Start = Callable[[Cluster], AbstractAsyncContextManager[Child | None]]
GangObject = Callable[[str, int], Mapping[str, Any]]


def _no_gang(gang: str, slot: int, size: int) -> Fields:
    return {}


@dataclass(frozen=True)
class Side:
    """One way to schedule gangs.

    Attributes:
        name: as in the report.
        scheduler_name: of its pods.
        start: runs its scheduler; None without one.
        in_gang: the fields that name a pod's gang.
        gang_object: (gang, size) -> an object a gang needs beside its pods.
        feature_gates, runtime_config: what the API server must serve for it.
    """

    name: str
    scheduler_name: str
    start: Start
    in_gang: InGang = _no_gang
    gang_object: GangObject | None = None
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    runtime_config: Mapping[str, bool] = field(default_factory=dict)


@asynccontextmanager
async def _muster(where: Cluster) -> AsyncIterator[Child | None]:
    async with controller(where.plane.access, where.admin, where.directory) as child:
        yield child


@asynccontextmanager
async def _plain(where: Cluster) -> AsyncIterator[Child | None]:
    async with _kube_scheduler(where, find_binaries() / "kube-scheduler", {}) as child:
        yield child


@asynccontextmanager
async def _native(where: Cluster) -> AsyncIterator[Child | None]:
    async with _kube_scheduler(where, find_binaries() / "kube-scheduler", {}, _NATIVE_GATES) as child:
        yield child


@asynccontextmanager
async def _coscheduling(where: Cluster) -> AsyncIterator[Child | None]:
    """As its own installation does: the plugin at every point, its order of the queue in place of the default one."""
    folder = find_built("coscheduling")
    where.plane.access.kubectl("create", "-f", str(folder / "manifests" / "scheduling.x-k8s.io_podgroups.yaml"))
    await served(where.admin, f"/apis/{_COSCHEDULING_API}/podgroups")
    enabled = [{"name": "Coscheduling"}]
    plugins = {"multiPoint": {"enabled": enabled}, "queueSort": {"enabled": enabled, "disabled": [{"name": "*"}]}}
    profile = {"schedulerName": _KUBE_SCHEDULER, "plugins": plugins}
    async with _kube_scheduler(where, folder / "coscheduling", {"profiles": [profile]}) as child:
        yield child


@asynccontextmanager
async def _no_scheduler(where: Cluster) -> AsyncIterator[Child | None]:
    yield None


@asynccontextmanager
async def _kube_scheduler(
    where: Cluster, program: Path, configuration: Mapping[str, Any], gates: Mapping[str, bool] | None = None
) -> AsyncIterator[Child]:
    """Run a kube-scheduler under an account with the rules of Kubernetes' own."""
    rules = [{"apiGroups": ["scheduling.x-k8s.io"], "resources": ["*"], "verbs": ["*"]}]
    kubeconfig = where.plane.access.service_account_kubeconfig(SYSTEM, "spike-scheduler", rules)
    account = {"kind": "ServiceAccount", "name": "spike-scheduler", "namespace": SYSTEM}
    rbac = "rbac.authorization.k8s.io"
    for role in ("system:kube-scheduler", "system:volume-scheduler"):
        where.plane.access.apply(
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": f"spike:{role}"},
                "subjects": [account],
                "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
            }
        )
    written = where.directory / "scheduler.json"
    written.write_text(
        json.dumps(
            {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "leaderElection": {"leaderElect": False},
                "clientConnection": {"kubeconfig": str(kubeconfig), "qps": QPS, "burst": QPS},
                **configuration,
            }
        )
    )
    arguments = [f"--config={written}", "--secure-port=0"]
    if gates:
        arguments.append("--feature-gates=" + ",".join(f"{gate}={str(on).lower()}" for gate, on in gates.items()))
    child = Child([program, *arguments], where.directory / "scheduler.log")
    try:
        yield child
    finally:
        child.stop()


def _muster_gang(gang: str, slot: int, size: int) -> Fields:
    return {
        "metadata": {
            "labels": {LABEL_GANG: gang, LABEL_SLOT: str(slot)},
            "annotations": {ANNOTATION_GANG_SIZE: str(size), ANNOTATION_GANG_UID: gang},
        }
    }


def _native_gang(gang: str, slot: int, size: int) -> Fields:
    return {"spec": {"schedulingGroup": {"podGroupName": gang}}}


def _native_group(gang: str, size: int) -> Mapping[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": gang, "namespace": NAMESPACE},
        "spec": {"schedulingPolicy": {"gang": {"minCount": size}}},
    }


def _coscheduling_gang(gang: str, slot: int, size: int) -> Fields:
    return {"metadata": {"labels": {_COSCHEDULING_LABEL: gang}}}


def _coscheduling_group(gang: str, size: int) -> Mapping[str, Any]:
    return {
        "apiVersion": _COSCHEDULING_API,
        "kind": "PodGroup",
        "metadata": {"name": gang, "namespace": NAMESPACE},
        "spec": {"minMember": size},
    }


RAW = Side("raw", "none", _no_scheduler, _muster_gang)
"""The limit: Muster's pods are created and bound by one client, each gang as soon as it is complete."""
SIDES = {
    side.name: side
    for side in (
        RAW,
        Side("muster", SCHEDULER_NAME, _muster, _muster_gang),
        Side("plain", _KUBE_SCHEDULER, _plain),
        Side(
            "native",
            _KUBE_SCHEDULER,
            _native,
            _native_gang,
            _native_group,
            _NATIVE_GATES,
            {"scheduling.k8s.io/v1alpha2": True},
        ),
        Side("coscheduling", _KUBE_SCHEDULER, _coscheduling, _coscheduling_gang, _coscheduling_group),
    )
}
