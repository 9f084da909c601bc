"""Issue 11.8 and 11.9: rules of TrainingJobs, which the real server reads as CEL and the embedded one as functions."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.api.crd import KINDS, definition
from muster.api.training_job import MUTABLE_FIELDS, TrainingJob, TrainingJobSpec
from tests.scenarios.apiserver.operations import Case, Step, get, patch, post, put

CRD = definition(next(kind for kind in KINDS if kind.resource is TrainingJob.RESOURCE))
JOBS = "/apis/muster.dev/v1alpha1/namespaces/{ns}/trainingjobs"
OTHERS: dict[str, Any] = {
    "suspend": True, "priority": 3, "backoffLimit": 9, "infrastructureLimit": 9, "unknownLimit": 9,
    "restartable": True,
    "timeLimitSeconds": 60, "ttlSecondsAfterFinished": 60, "replicas": 3, "gpusPerNode": 4, "nodeSharing": "Shared",
    "gpuResource": "amd.com/gpu", "ranksPerNode": 2, "launcher": "none", "image": "other", "command": ["other"],
    "args": ["-v"], "env": [{"name": "A", "value": "1"}], "workingDir": "/w", "code": {"configMap": "c"},
    "template": {"spec": {"nodeSelector": {"a": "b"}}}, "priorityClassName": "high", "borrow": True,
    "checkpoint": {"path": "/other"}, "testedWithinHours": 3, "noSpare": "Requeue", "sharedMemory": "1Gi",
    "rdma": {"resource": "rdma/hca"}, "ipcLock": True, "hostNetwork": True, "ncclEnv": {"NCCL_DEBUG": "INFO"},
    "stopGraceSeconds": 5, "mpi": {"extraArgs": ["-v"]}, "stall": {"afterSeconds": 60},
}  # fmt: skip
"""Another value for each field of the spec; minReplicas goes with noSpare."""


def job(name: str = "train", **spec: Any) -> Any:
    body = {"replicas": 2, "image": "i", "command": ["train"], **spec}
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": body}


def begun(name: str = "train") -> Step:
    return patch(f"{JOBS}/{name}/status", {"status": {"attempt": 1, "phase": "Running"}})


def edit(field: str, value: Any, name: str = "train") -> Step:
    return patch(f"{JOBS}/{name}", {"spec": {field: value}})


def everything_fixed() -> list[Step]:
    fields = [each.encode_name for each in msgspec.structs.fields(TrainingJobSpec)]
    return [edit(field, OTHERS[field]) for field in fields if field in OTHERS and field not in MUTABLE_FIELDS]


_INSTALLED = [
    Step("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", CRD, may_exist=True),
    Step("GET", JOBS, until=200),
]
_CLAIMS = {"spec": {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight"}]}}


CASES = [
    Case(
        "job_edits",
        [
            *_INSTALLED,
            post(JOBS, job()),
            edit("image", "before-it-began"),
            begun(),
            *everything_fixed(),
            edit("minReplicas", 1),
            patch(f"{JOBS}/train", {"spec": {"noSpare": "Shrink", "minReplicas": 1}}),
            *(edit(field, OTHERS[field]) for field in sorted(MUTABLE_FIELDS - {"suspend"})),
            patch(f"{JOBS}/train", {"spec": {"replicas": 4, "image": "both"}}),
            put(f"{JOBS}/train", {**job(replicas=4), "metadata": {"name": "train", "resourceVersion": "{rv}"}}),
            patch(f"{JOBS}/train", {"metadata": {"labels": {"a": "b"}}}),
            get(f"{JOBS}/train"),
            edit("suspend", True),
            patch(f"{JOBS}/train", {"spec": {"replicas": 4, "template": {"spec": {"nodeSelector": {"a": "c"}}}}}),
            edit("suspend", False),
            edit("template", {"spec": {"nodeSelector": {"a": "d"}}}),
            patch(f"{JOBS}/train/status", {"status": {"attempt": 2, "phase": "Running"}}),
        ],
    ),
    Case(
        "job_rules",
        [
            *_INSTALLED,
            post(JOBS, job("a" * 53)),
            post(JOBS, job("with.dot")),
            post(JOBS, job("shrinks", noSpare="Shrink")),
            post(JOBS, job("shrinks", noSpare="Shrink", minReplicas=3)),
            post(JOBS, job("claims", template=_CLAIMS)),
            post(JOBS, job("wrong", replicas="two", template=_CLAIMS)),
            post(JOBS, job("none", template={"spec": {"resourceClaims": []}})),
        ],
    ),
]
