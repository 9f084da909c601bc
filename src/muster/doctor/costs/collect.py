"""Reads the workloads of a cluster and a log of requests, and adds up who sent what."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from muster.api.reader import Reader
from muster.doctor.costs.cost import Objects
from muster.doctor.costs.counting import count_objects
from muster.doctor.costs.logfiles import read_requests
from muster.doctor.costs.owners import Owners, PodFacts, Workload
from muster.doctor.costs.tally import Observed, Tally, Usage
from muster.doctor.rule import Context
from muster.kube.loglines import LogFileError, Reading
from muster.kube.objects.meta import OwnerReference
from muster.kube.objects.struct import from_dict

PODS_MAX: Final = 5_000
"""In a larger cluster, workloads are read instead of pods. Tokens that are bound to pods still name the pod."""
_PAGE: Final = 500
_CALLERS: Final = "which service account or DaemonSet sends which requests"
_WHAT: Final = "which workload uses which service account"
_WORKLOADS: Final = {
    "DaemonSet": "/apis/apps/v1/daemonsets",
    "Deployment": "/apis/apps/v1/deployments",
    "StatefulSet": "/apis/apps/v1/statefulsets",
}
_MIDDLE: Final = ("/apis/apps/v1/replicasets", "/apis/batch/v1/jobs")


class RequestUsage(NamedTuple):
    """What a log of requests shows.

    Attributes:
        observed: by caller and shape.
        lines: lines read.
        broken: lines that could not be read.
        source: names of the files, for evidence.
        counted: numbers and sizes of the objects that were listed or watched.
    """

    observed: Observed
    lines: int
    broken: int
    source: str
    counted: Mapping[str, Objects] = {}


async def collect_usage(context: Context) -> RequestUsage | None:
    """Read the log that the user named; None without one, or if it cannot be read."""
    files = context.options.audit_log
    if not files:
        context.reader.note(
            _CALLERS,
            "there is no log of requests; give the API server's audit log or the read cache's log with --audit-log",
        )
        return None
    owners, nodes = await read_owners(context.reader)
    try:
        usage = await asyncio.to_thread(tally_files, files, owners, nodes)
    except LogFileError as error:
        context.reader.note(_CALLERS, str(error))
        return None
    if not usage.lines or usage.broken:
        context.reader.note(_CALLERS, _gaps(usage))
    return usage._replace(counted=await count_objects(context.reader, objects_of(usage.observed.usages)))


def _gaps(usage: RequestUsage) -> str:
    """Say what is missing in a log that is empty or has lines that are not requests."""
    if not usage.lines:
        return f"{usage.source} is empty; check that the log covers the time of the problem"
    return f"{usage.broken} of {usage.lines} lines of {usage.source} are not requests; check that it is one of the logs"


def objects_of(usages: Iterable[Usage]) -> set[str]:
    """Resources whose number of objects decides the cost of requests, except those of the control plane."""
    return {
        usage.shape.objects
        for usage in usages
        if usage.shape.verb in ("list", "watch", "get")
        and not usage.caller.system
        and usage.shape.resource.isprintable()
    }


def tally_files(files: Sequence[Path], owners: Owners, nodes: frozenset[str]) -> RequestUsage:
    """Read log files and add them up. Raises LogFileError."""
    reading = Reading()
    tally = Tally(owners, nodes.__contains__)
    for line in read_requests(files, reading):
        tally.add(line)
    return RequestUsage(tally.finish(), reading.lines, reading.broken, ", ".join(str(path) for path in files))


async def read_owners(reader: Reader) -> tuple[Owners, frozenset[str]]:
    """Read pods and workloads in pages, and the names of nodes that have pods.

    What may not be read is noted in `reader.unseen`; service accounts are then named instead of workloads.
    """
    pods = await reader.list("/api/v1/pods", what=_WHAT, limit=_PAGE, pages=PODS_MAX // _PAGE)
    workloads: list[Workload] = []
    for kind, path in _WORKLOADS.items():
        listed = await reader.list(path, what=_WHAT, limit=_PAGE, pages=10)
        workloads += [workload_of(kind, item) for item in (listed.items if listed is not None else ())]
    above: dict[str, OwnerReference] = {}
    facts = [pod_facts(item) for item in pods.items] if pods is not None else []
    if any(fact.owner is not None and fact.owner.kind in ("ReplicaSet", "Job") for fact in facts):
        for path in _MIDDLE:
            listed = await reader.list(path, what=_WHAT, limit=_PAGE, pages=10)
            above |= _controllers(listed.items if listed is not None else ())
    return Owners(facts, above, workloads), frozenset(fact.node for fact in facts if fact.node)


def pod_facts(pod: Mapping[str, Any]) -> PodFacts:
    """What the mapping needs of a pod as plain data."""
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    return PodFacts(
        namespace=meta.get("namespace", ""),
        name=meta.get("name", ""),
        account=spec.get("serviceAccountName") or "default",
        node=spec.get("nodeName", ""),
        owner=_controller(meta),
        address="" if spec.get("hostNetwork") else status.get("podIP", ""),
    )


def workload_of(kind: str, item: Mapping[str, Any]) -> Workload:
    """What the mapping needs of a workload as plain data."""
    meta = item.get("metadata") or {}
    spec = ((item.get("spec") or {}).get("template") or {}).get("spec") or {}
    namespace = meta.get("namespace", "")
    account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
    return Workload(kind, namespace, meta.get("name", ""), f"{namespace}/{account}")


def _controllers(items: Iterable[Mapping[str, Any]]) -> dict[str, OwnerReference]:
    found = {}
    for item in items:
        meta = item.get("metadata") or {}
        owner = _controller(meta)
        if owner is not None:
            found[meta.get("uid", "")] = owner
    return found


def _controller(meta: Mapping[str, Any]) -> OwnerReference | None:
    for reference in meta.get("ownerReferences") or ():
        if reference.get("controller"):
            return from_dict(reference, OwnerReference)
    return None
