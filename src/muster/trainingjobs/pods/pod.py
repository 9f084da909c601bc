"""Builds the pod of one slot: the job's template, with the gang's labels and the supervisor as process 1."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from muster.api import names
from muster.api.checkpoint_dir import folder_of
from muster.api.store_url import is_url, local_folder
from muster.api.training_job import TrainingJob, TrainingJobSpec
from muster.api.whole_node import WholeNode, annotation
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import to_dict
from muster.trainingjobs.pods import stores
from muster.trainingjobs.pods.stores import CacheVolume

Json = dict[str, Any]

CODE_DIRECTORY: Final = "/var/run/muster-code"
CODE_FILE: Final = "code.tar.gz"
WORK_DIRECTORY: Final = "/muster/work"
_TOKEN_S: Final = 3600

NCCL_DEFAULTS: Final[Mapping[str, str]] = {
    "NCCL_DEBUG": "WARN",
    "NCCL_IB_TIMEOUT": "22",  # tolerate a link that is down for a few seconds (NCCL docs, environment variables)
    "NCCL_IB_RETRY_CNT": "7",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",  # a rank that loses a peer ends instead of hanging
}


class PodSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that every pod of this installation gets.

    Attributes:
        url: the controller's address for supervisors.
        ca_pem: the certificate authority of that address.
        muster_image: the image from which the supervisor is copied.
        team_key: key of the taint of nodes that a team owns.
        cache: how pods reach the node cache; None if there is no cache.
    """

    url: str
    ca_pem: str
    muster_image: str
    team_key: str = names.LABEL_TEAM
    cache: CacheVolume | None = None


def settings_for(settings: PodSettings, job: TrainingJob, allows_host_paths: bool) -> PodSettings:
    """The settings for one job: without the cache if the job does not need it, or if its pods cannot reach the socket.

    `allows_host_paths` is whether pods of the job's namespace may have hostPath volumes.
    """
    cache = settings.cache
    if cache is None or (cache.used_by(job.spec) and cache.reaches(job.namespace, allows_host_paths)):
        return settings
    return replace(settings, cache=None)


def build_pod(job: TrainingJob, slot: int, attempt: int, excluded: Sequence[str], settings: PodSettings) -> Json:
    """Return the pod as a manifest."""
    spec, template = job.spec, deepcopy(job.spec.template)
    pod = template.get("spec") or {}
    worker, others = _split(pod.get("containers") or [])
    pod["containers"] = [_worker(job, slot, worker, settings), *others]
    pod["initContainers"] = [_installer(settings), *(pod.get("initContainers") or [])]
    pod["volumes"] = [*_volumes(spec), *stores.volumes(spec, settings.cache), *(pod.get("volumes") or [])]
    pod["tolerations"] = [*(pod.get("tolerations") or []), *_tolerations(job, settings.team_key)]
    if excluded:
        pod["affinity"] = _keeping_away(pod.get("affinity") or {}, excluded)
    pod.update(
        schedulerName=names.SCHEDULER_NAME,
        restartPolicy="Never",
        automountServiceAccountToken=False,
        enableServiceLinks=False,
        terminationGracePeriodSeconds=spec.stop_grace_seconds,
    )
    priority_class = spec.priority_class_name or (names.BORROWER_CLASS if spec.borrow else "")
    if priority_class:
        pod["priorityClassName"] = priority_class
    if spec.host_network:
        pod.update(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(job, slot, attempt, excluded, template.get("metadata") or {}),
        "spec": pod,
    }


def excluded_nodes(pod: Pod) -> frozenset[str]:
    """Return the nodes that `build_pod` excludes for this pod, without those that the job's template excludes."""
    text = pod.metadata.annotations.get(names.ANNOTATION_EXCLUDED, "")
    return frozenset(text.split(",")) if text else frozenset()


def _metadata(job: TrainingJob, slot: int, attempt: int, excluded: Sequence[str], template: Json) -> Json:
    annotations = {
        **(template.get("annotations") or {}),
        names.ANNOTATION_GANG_SIZE: str(job.spec.replicas),
        names.ANNOTATION_GANG_UID: job.uid,
        names.ANNOTATION_ATTEMPT: str(attempt),
    }
    if excluded:
        annotations[names.ANNOTATION_EXCLUDED] = ",".join(excluded)
    use = job.status.node_use
    annotations.pop(names.ANNOTATION_WHOLE_NODE, None)  # the template must not set this label
    if use is not None and job.exclusive:
        counts = WholeNode(job.spec.gpu_resource, use.node_gpus) if use.node_gpus is not None else WholeNode()
        annotations[names.ANNOTATION_WHOLE_NODE] = annotation(counts)
    if job.spec.tested_within_hours is not None:
        annotations[names.ANNOTATION_TESTED_WITHIN] = str(job.spec.tested_within_hours)
    if job.spec.priority is not None:
        annotations[names.ANNOTATION_PRIORITY] = str(job.spec.priority)
    return {
        "name": names.pod_name(job.name, slot, attempt),
        "namespace": job.namespace,
        "labels": {
            **(template.get("labels") or {}),
            names.LABEL_GANG: job.name,
            names.LABEL_SLOT: str(slot),
            names.LABEL_MANAGED_BY: names.MANAGED_BY,
            **({names.LABEL_BORROWED: "true"} if job.spec.borrow else {}),
        },
        "annotations": annotations,
        # no blockOwnerDeletion: it would need a right on trainingjobs/finalizers
        "ownerReferences": [
            {"apiVersion": job.api_version, "kind": job.kind, "name": job.name, "uid": job.uid, "controller": True}
        ],
    }


def _split(containers: list[Json]) -> tuple[Json, list[Json]]:
    worker = next((each for each in containers if each.get("name") == names.WORKER_CONTAINER), {})
    return worker, [each for each in containers if each.get("name") != names.WORKER_CONTAINER]


def _installer(settings: PodSettings) -> Json:
    return {
        "name": "muster-install",
        "image": settings.muster_image,
        "command": ["python3", "-m", "muster.trainingjobs.supervisor", "install", names.SUPERVISOR_DIRECTORY],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [{"name": "muster", "mountPath": "/muster"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _worker(job: TrainingJob, slot: int, template: Json, settings: PodSettings) -> Json:
    spec, worker = job.spec, dict(template)
    worker.update(
        name=names.WORKER_CONTAINER,
        image=spec.image or template.get("image", ""),
        command=["python3", f"{names.SUPERVISOR_DIRECTORY}/supervisor.py", "run"],
        env=_environment(job, slot, settings),
        volumeMounts=[
            *_mounts(spec),
            *stores.mounts(spec, settings.cache),
            *(template.get("volumeMounts") or []),
        ],
    )
    counted = _counted(job)
    if counted:
        resources = dict(template.get("resources") or {})
        for kind in ("limits", "requests"):
            resources[kind] = {**(resources.get(kind) or {}), **counted}
        worker["resources"] = resources
    if spec.ipc_lock or spec.rdma is not None:
        security = dict(template.get("securityContext") or {})
        capabilities = dict(security.get("capabilities") or {})
        capabilities["add"] = sorted({*(capabilities.get("add") or []), "IPC_LOCK"})
        worker["securityContext"] = {**security, "capabilities": capabilities}
    return worker


def _counted(job: TrainingJob) -> dict[str, str]:
    """Devices: limits and requests are equal."""
    spec = job.spec
    counted = {spec.gpu_resource: str(job.gpus)} if job.gpus else {}
    if spec.rdma is not None:
        counted[spec.rdma.resource] = str(spec.rdma.count)
    return counted


def _environment(job: TrainingJob, slot: int, settings: PodSettings) -> list[Json]:
    """Return the environment: Muster's variables first, so that the job's variables may refer to them."""
    spec = job.spec
    ours = {
        "MUSTER_URL": settings.url,
        "MUSTER_CA_DATA": base64.b64encode(settings.ca_pem.encode()).decode(),
        "MUSTER_TOKEN_FILE": f"{names.TOKEN_DIRECTORY}/token",
        "MUSTER_NAMESPACE": job.namespace,
        "MUSTER_JOB": job.name,
        "MUSTER_JOB_UID": job.uid,
        "MUSTER_SLOT": str(slot),
    }
    if spec.code is not None and spec.code.config_map:
        ours["MUSTER_CODE_ARCHIVE"] = f"{CODE_DIRECTORY}/{CODE_FILE}"
    elif spec.code is not None:
        ours.update(MUSTER_CODE_URL=spec.code.url, MUSTER_CODE_SHA256=spec.code.sha256)
    if spec.working_dir or spec.code is not None:
        ours["MUSTER_WORKDIR"] = spec.working_dir or WORK_DIRECTORY
    ours.update(_checkpoints(job))
    ours.update(stores.environment(spec, settings.cache))
    downward = {"POD_NAME": "metadata.name", "POD_UID": "metadata.uid", "POD_IP": "status.podIP"}
    own = {variable.name for variable in spec.env}
    nccl = {**(NCCL_DEFAULTS if job.gpus else {}), **spec.nccl_env}
    return [
        *({"name": name, "value": value} for name, value in ours.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in downward.items()),
        *({"name": name, "value": value} for name, value in nccl.items() if value and name not in own),
        *(to_dict(variable) for variable in spec.env),
    ]


def _checkpoints(job: TrainingJob) -> dict[str, str]:
    """Environment for checkpoints: the job's own folder, the folder of all jobs, and the checkpoint to start from."""
    folder, spec, source = folder_of(job), job.spec.checkpoint, job.status.checkpoint_source
    if not folder:
        return {}
    found = {"MUSTER_CHECKPOINT_DIR": folder}
    if spec is not None and job.status.checkpoint_dir and not is_url(local_folder(spec.path)):
        found["MUSTER_CHECKPOINT_ROOT"] = local_folder(spec.path)
    if spec is not None and spec.from_ is not None and source is not None and not source.path:
        found["MUSTER_CHECKPOINT_FROM_JOB"] = spec.from_.job
        found["MUSTER_CHECKPOINT_FROM_PATH"] = local_folder(spec.from_.path)
    return found


def _mounts(spec: TrainingJobSpec) -> list[Json]:
    mounts: list[Json] = [
        {"name": "muster", "mountPath": "/muster"},
        {"name": "muster-token", "mountPath": names.TOKEN_DIRECTORY, "readOnly": True},
        {"name": "muster-shm", "mountPath": "/dev/shm"},
    ]
    if spec.code is not None and spec.code.config_map:
        mounts.append({"name": "muster-code", "mountPath": CODE_DIRECTORY, "readOnly": True})
    return mounts


def _volumes(spec: TrainingJobSpec) -> list[Json]:
    token = {"path": "token", "audience": names.TOKEN_AUDIENCE, "expirationSeconds": _TOKEN_S}
    shared: Json = {"medium": "Memory"}
    if spec.shared_memory:
        shared["sizeLimit"] = spec.shared_memory
    volumes: list[Json] = [
        {"name": "muster", "emptyDir": {}},
        {"name": "muster-token", "projected": {"sources": [{"serviceAccountToken": token}]}},
        {"name": "muster-shm", "emptyDir": shared},
    ]
    if spec.code is not None and spec.code.config_map:
        volumes.append({"name": "muster-code", "configMap": {"name": spec.code.config_map}})
    return volumes


def _tolerations(job: TrainingJob, team_key: str) -> list[Json]:
    """Tolerations of a worker pod.

    Muster decides when a node that is not ready loses its pods; the taint manager would wait 300 s. Pools are for
    gangs; without pools their toleration has no effect. A borrower tolerates nodes of every team.
    """
    tolerations: list[Json] = [
        {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute"}
        for taint in ("not-ready", "unreachable")
    ]
    tolerations.append({"key": names.TAINT_POOL, "operator": "Exists", "effect": "NoSchedule"})
    if job.spec.borrow:
        tolerations.append({"key": team_key, "operator": "Exists", "effect": "NoSchedule"})
    if job.gpus:
        tolerations.append({"key": job.spec.gpu_resource, "operator": "Exists", "effect": "NoSchedule"})
    return tolerations


def _keeping_away(affinity: Json, nodes: Sequence[str]) -> Json:
    """Return the affinity with these nodes excluded in every term, because terms are alternatives.

    A field requirement holds exactly one value (kubernetes pkg/apis/core/validation/validation.go).
    """
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in nodes]
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    required = dict(node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {})
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or []), *fields]} for term in terms
    ]
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = required
    return {**affinity, "nodeAffinity": node_affinity}
