"""Pods of every kind of object that the scheduler may read. No pod finds a node."""

from __future__ import annotations

import asyncio
from typing import Any

from muster.kube.objects.apps import StatefulSet
from muster.kube.objects.batch import Job
from tests.scenarios.deploy.conftest import ACCOUNT, Jobs, until
from tests.scenarios.deploy.rights import used
from tests.support import workloads

KINDS = {"jobs.batch", "statefulsets.apps", "podgroups.scheduling.k8s.io"} | {
    f"{resource.plural}.{resource.group}" for resource in workloads.CUSTOM
}


async def name_every_kind(jobs: Jobs, since: int) -> None:
    """Make the kinds and the pods, and wait until the scheduler watches every kind, as the audit log says."""
    spec: dict[str, Any] = {
        "schedulerName": "muster",
        "nodeSelector": {"role": "none"},
        "containers": [{"name": "worker", "image": "none"}],
    }
    template = {"metadata": {"labels": {"app": "foreign"}}, "spec": spec}
    job = {"completionMode": "Indexed", "completions": 1, "template": {"spec": {**spec, "restartPolicy": "Never"}}}
    selector = {"matchLabels": {"app": "foreign"}}
    await workloads.install(jobs.client, *workloads.CUSTOM)
    named = {
        "coscheduling": {workloads.POD_GROUP: "group"},
        "jobset": workloads.jobset_labels("set", "part", 0, 0),
        "mpi": workloads.mpi_labels("mpi", "launcher"),
        "ray": workloads.ray_labels("ray"),
        "native": {},
    }
    bodies = [
        workloads.object_of(Job.RESOURCE, "foreign", jobs.namespace, job),
        workloads.object_of(
            StatefulSet.RESOURCE, "foreign", jobs.namespace, {"selector": selector, "template": template}
        ),
        *(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": jobs.namespace, "labels": labels},
                "spec": {**spec, **({"schedulingGroup": {"podGroupName": "group"}} if name == "native" else {})},
            }
            for name, labels in named.items()
        ),
    ]
    await asyncio.to_thread(jobs.cluster.plane.access.apply, *bodies)

    def unread() -> set[str]:
        entries = used(jobs.cluster, ACCOUNT, since)
        return KINDS - {
            f"{each.object_ref.what}.{each.object_ref.api_group}" for each in entries if each.verb == "watch"
        }

    async def all_read() -> bool:
        return not unread()

    try:
        await until("every kind that a pod names is watched", all_read)
    except AssertionError as error:
        raise AssertionError(f"{error}; but not {unread()}\n{await jobs.controller_logs()}") from None
    await asyncio.to_thread(
        jobs.cluster.kubectl,
        "delete",
        "jobs,statefulsets,pods",
        "--all",
        f"--namespace={jobs.namespace}",
        "--wait=false",
    )
    await workloads.uninstall(jobs.client, *workloads.CUSTOM)
