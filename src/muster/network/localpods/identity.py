"""Reads who a pod is from its object: the job that people know, its team, the images that it waits for."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from muster.api.names import LABEL_GANG, MIRROR
from muster.kube.objects.container import ContainerStatus
from muster.kube.objects.pod import Pod
from muster.network.localpods.pod import LocalPod

JOB_LABELS: Final = (
    LABEL_GANG,
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "ray.io/cluster",
    "scheduling.x-k8s.io/pod-group",
)
"""Labels that name what a pod belongs to; the first one that it has counts. Its direct owner is often only a part."""
TEMPLATE_HASH: Final = "pod-template-hash"
"""Label of a Deployment's pods. Their owner is a ReplicaSet, whose name ends in this hash."""
STATIC_HASH: Final = "kubernetes.io/config.hash"
"""Annotation of a static pod. The kubelet names its cgroups by this hash, not by the UID of its copy in the API."""
RDMA_RESOURCE: Final = re.compile(r"rdma|hca|infiniband|/efa$", re.IGNORECASE)
"""Names of extended resources for RDMA devices: rdma/hca_shared_devices_a, vpc.amazonaws.com/efa and others."""
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,251}[A-Za-z0-9])?")
_HASH: Final = re.compile(r"[0-9a-f]{1,64}")
_LEADING_ZEROS: Final = re.compile(r"(?:(?<=^)|(?<=\.))0+(?=[0-9])")
_PULLING: Final = frozenset({"ContainerCreating", "PodInitializing", "ErrImagePull", "ImagePullBackOff"})


def local_pod(pod: Pod, team_key: str) -> LocalPod:
    """Return the pod as the agent sees it. `team_key` is the label that names its team."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    created = meta.creation_timestamp
    return LocalPod(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        job=job_of(pod),
        team=meta.labels.get(team_key, ""),
        priority=spec.priority or 0,
        addresses=tuple(dict.fromkeys(_addresses([each.ip for each in status.pod_ips] or [status.pod_ip]))),
        host_network=spec.host_network,
        phase=status.phase,
        created_s=created.timestamp() if created is not None else 0.0,
        cgroup_uid=_static_hash(meta.annotations) if MIRROR in meta.annotations else "",
        rdma=_may_use_rdma(pod),
        pulling=tuple(dict.fromkeys(_pulling(pod))),
    )


def job_of(pod: Pod) -> str:
    """Return the name of the owner that people know; "" for a pod without one. Static pods belong to their node.

    The API server accepts any text as an owner's name. One that cannot be an object's name counts as no owner: rows
    such as `(host)` and `(tunnel)` are not for pods.
    """
    labels = pod.metadata.labels
    for label in JOB_LABELS:
        if labels.get(label):
            return labels[label]
    owner = next((each for each in pod.metadata.owner_references if each.controller), None)
    if owner is None or owner.kind == "Node" or not _NAME.fullmatch(owner.name):
        return ""
    template_hash = labels.get(TEMPLATE_HASH, "")
    if owner.kind == "ReplicaSet" and template_hash:
        return owner.name.removesuffix(f"-{template_hash}")
    return owner.name


def _addresses(given: Iterable[str]) -> Iterator[str]:
    """Yield addresses in their usual form: IPv4 in IPv6 as IPv4, and without the zeros before IPv4's numbers.

    The API server accepts both (IsValidIPForLegacyField in pkg/apis/core/validation). Other texts are left out.
    """
    for each in given:
        try:
            address = ipaddress.ip_address(_LEADING_ZEROS.sub("", each))
        except ValueError:
            continue
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        yield str(mapped or address)


def _static_hash(annotations: Mapping[str, str]) -> str:
    """The hash of a static pod's file; "" if the annotation is something else, such as a path."""
    found = annotations.get(STATIC_HASH, "")
    return found if _HASH.fullmatch(found) else ""


def _may_use_rdma(pod: Pod) -> bool:
    requested = {
        name
        for each in (*pod.spec.init_containers, *pod.spec.containers)
        if each.resources is not None
        for name in (*each.resources.limits, *each.resources.requests)
    }
    mounted = {each.host_path.path for each in pod.spec.volumes if each.host_path is not None}
    return any(RDMA_RESOURCE.search(name) for name in requested) or any(
        path.rstrip("/") in ("/dev", "/dev/infiniband") for path in mounted
    )


def _pulling(pod: Pod) -> Iterator[str]:
    if pod.status.phase != "Pending":
        return
    images = {each.name: each.image for each in (*pod.spec.init_containers, *pod.spec.containers)}
    for each in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if _waits_for_image(each) and images.get(each.name):
            yield images[each.name]


def _waits_for_image(status: ContainerStatus) -> bool:
    waiting = status.state.waiting if status.state is not None else None
    return not status.image_id and waiting is not None and waiting.reason in _PULLING
