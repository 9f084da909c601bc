"""Issues 11.8, 11.9, 14.1: rules of TrainingJobs. The real server reads CEL, and the embedded one has functions."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.api.crd import KINDS, definition
from muster.api.rules import STORES
from muster.api.training_job import MUTABLE_FIELDS, TrainingJob, TrainingJobSpec
from tests.scenarios.apiserver.operations import MERGE, Case, Step, get, patch, post, put

CRD = definition(next(kind for kind in KINDS if kind.resource is TrainingJob.RESOURCE))
JOBS = "/apis/muster.dev/v1alpha1/namespaces/{ns}/trainingjobs"
OTHERS: dict[str, Any] = {
    "suspend": True, "priority": 3, "backoffLimit": 9, "infrastructureLimit": 9, "unknownLimit": 9,
    "restartable": True,
    "timeLimitSeconds": 60, "ttlSecondsAfterFinished": 60, "replicas": 3, "gpusPerNode": 4, "nodeSharing": "Shared",
    "gpuResource": "amd.com/gpu", "ranksPerNode": 2, "launcher": "none", "image": "other", "command": ["other"],
    "args": ["-v"], "env": [{"name": "A", "value": "1"}], "workingDir": "/w", "code": {"configMap": "c"},
    "template": {"spec": {"nodeSelector": {"a": "b"}}}, "priorityClassName": "high", "borrow": True,
    "checkpoint": {"path": "/other"}, "data": {"url": "s3://other/data"},
    "testedWithinHours": 3, "noSpare": "Requeue", "sharedMemory": "1Gi",
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


_STORE = {"endpoint": "http://127.0.0.1:9000", "region": "eu-1", "credentials": {"secretName": "s"}}
_DATA_URLS = (
    "s3://bucket/path", "gs://bucket", "az://container/path/", "file:///data/a folder", "/data", "hdfs://host/path",
    "s3://", "s3:///path", "s3://key:secret@bucket/path", "s3://bucket/path?region=eu", "s3://bucket/path#part",
    "s3://bucket:80/path", "file://data", "file:///", "s3://bucket/a\tb", "",
)  # fmt: skip
_CHECKPOINT_PATHS = (
    "ckpt", "/ckpt?", "s3://bucket/run?region=eu", "abfss://c@account.dfs.core.windows.net/x", "hdfs://user@host/x",
    "hdfs://user:word@host/x", "s3://key@bucket/x", "https://account/c?sv=2024&SIG=abc", "s3://b/x?X-Amz-Signature=1",
    "s3://b/x?token=t", "s3://b/x?tokens=3", "gs://b/x?access_key_id=k",
)  # fmt: skip
_ENDPOINTS = ("http://host:9000", "https://host/base", "host:9000", "http://user:word@host", "http://host?key=1", "")


_RULE = next(each for each in STORES if each.field == ".checkpoint.path")


def _runs(**spec: Any) -> dict[str, Any]:
    path = {"type": "object", "properties": {"path": {"type": "string", "maxLength": 100}}}
    checkpoint = {"type": "object", "properties": {"checkpoint": path, "size": {"type": "integer"}}, **spec}
    status = {"type": "object", "properties": {"phase": {"type": "string"}}}
    schema = {"type": "object", "properties": {"spec": checkpoint, "status": status}}
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}
    names = {"plural": "runs", "singular": "run", "kind": "Run", "listKind": "RunList"}
    versions = [{**version, "schema": {"openAPIV3Schema": schema}}]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "runs.diff.example.com"},
        "spec": {"group": "diff.example.com", "scope": "Namespaced", "names": names, "versions": versions},
    }


def _run(name: str) -> dict[str, Any]:
    spec = {"checkpoint": {"path": "s3://key:word@bucket/x"}}
    return {"apiVersion": "diff.example.com/v1", "kind": "Run", "metadata": {"name": name}, "spec": spec}


_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_RUNS = "/apis/diff.example.com/v1/namespaces/{ns}/runs"
_WITH_RULE = _runs(
    **{"x-kubernetes-validations": [{"rule": _RULE.cel, "message": _RULE.message, "fieldPath": _RULE.field}]}
)

CASES = [
    Case(
        "rule_that_is_newer_than_the_object",
        [
            Step("POST", _DEFINITIONS, _runs(), compare=False),
            Step("GET", _RUNS, until=200),
            post(_RUNS, _run("old")),
            Step("PATCH", f"{_DEFINITIONS}/runs.diff.example.com", _WITH_RULE, MERGE, compare=False),
            Step("POST", f"{_RUNS}?dryRun=All", _run("new"), until=422),
            # the real server adds a warning
            Step("PATCH", f"{_RUNS}/old", {"metadata": {"labels": {"a": "b"}}}, MERGE, compare=False),
            Step("PATCH", f"{_RUNS}/old/status", {"status": {"phase": "Running"}}, MERGE, compare=False),
            patch(f"{_RUNS}/old", {"spec": {"size": 3}}),
            patch(f"{_RUNS}/old", {"spec": {"size": 3, "checkpoint": {"path": "s3://bucket/x"}}}),
        ],
        cleanup=(f"{_DEFINITIONS}/runs.diff.example.com",),
    ),
    Case(
        "job_stores",
        [
            *_INSTALLED,
            *(post(JOBS, job(f"data-{n}", data={"url": url})) for n, url in enumerate(_DATA_URLS)),
            *(post(JOBS, job(f"path-{n}", checkpoint={"path": path})) for n, path in enumerate(_CHECKPOINT_PATHS)),
            *(
                post(JOBS, job(f"end-{n}", data={"url": "s3://bucket", "endpoint": each}))
                for n, each in enumerate(_ENDPOINTS)
            ),
            post(JOBS, job("from", checkpoint={"path": "/c", "from": {"path": "s3://key:word@bucket/x"}})),
            post(JOBS, job("both", data={"url": "s3://b", **_STORE}, checkpoint={"path": "s3://b", **_STORE})),
            get(f"{JOBS}/both"),
            post(JOBS, job("secret", data={"url": "s3://b", "credentials": {"secretName": "No Name"}})),
            post(JOBS, job("unnamed", data={"url": "s3://b", "credentials": {}})),
            post(JOBS, job("policy", data={"url": "s3://b", "badShards": "Ignore"})),
        ],
    ),
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
