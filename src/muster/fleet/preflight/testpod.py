"""The pod that tests a node: all its GPUs, on that node and no other, and nothing that it does not need."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from muster.api.names import (
    LABEL_BALLOON,
    LABEL_PREFLIGHT,
    SCHEDULER_NAME,
    TAINT_POOL,
    TAINT_PREFLIGHT,
    TAINT_QUARANTINE,
)
from muster.api.trust import GPU
from muster.fleet.preflight.config import PreflightConfig
from muster.gputest.levels import LEVELS
from muster.kube.affinity import Toleration
from muster.kube.struct import to_dict

PRIORITY_CLASS: Final = "muster-preflight"
PREFIX: Final = "muster-preflight-"
CONTAINER: Final = "test"
ANNOTATION_TEST: Final = "muster.dev/preflight-test"
"""On pods: what they test, and for which boot (JSON, `TestRecord`)."""
GRACE_S: Final = 1
"""Not zero: the pod's object would be gone while its process still holds the GPUs (Kubernetes: forced deletion)."""
_SLACK_S: Final = 120.0
"""Beside the tests' own budget: processes that do not start are waited for (docs/gputest.md, "Levels")."""
_RESULT: Final = "/dev/termination-log"


class TestRecord(msgspec.Struct, frozen=True, rename="camel"):
    """What a pod was made for."""

    node: str
    node_uid: str
    boot_id: str
    level: int
    backend: str
    made_with: str = ""


def made_with(config: PreflightConfig) -> str:
    """Return what tells whether a test would be made differently by another configuration."""
    said = (
        config.image, config.pull_policy, config.run_as_user, config.runtime_class, config.backend, config.start_s,
    )  # fmt: skip
    text = msgspec.json.encode((*said, config.tolerations, config.resources), order="sorted")
    return hashlib.sha256(text).hexdigest()[:16]


def run_s(level: int) -> float:
    """Return how long a test of that level may run: by then it has ended itself, even if everything hung."""
    return sum(step.deadline_s for step in LEVELS[level]) + _SLACK_S


def tolerations(config: PreflightConfig, team_key: str) -> tuple[Toleration, ...]:
    """Return the taints that tests tolerate: those of nodes that wait for them, and those that nodes have for good."""
    own = (TAINT_PREFLIGHT, TAINT_QUARANTINE, TAINT_POOL, team_key, GPU)
    return (
        *(Toleration(key=key, operator="Exists") for key in own),
        *(each.toleration() for each in config.tolerations),
    )


def name_of(node_uid: str) -> str:
    """Return the name of a node's test: two controllers make one pod, and a node has one at a time."""
    return PREFIX + hashlib.sha256(node_uid.encode()).hexdigest()[:16]


def manifest(
    record: TestRecord, gpus: int, config: PreflightConfig, *, namespace: str, image: str, team_key: str, retest: bool
) -> dict[str, Any]:
    """Return the pod.

    Args:
        record: what it is for.
        gpus: how many the node has.
        config: image, tolerations, time.
        namespace: Muster's own.
        image: Muster's own, where the configuration names none.
        team_key: key of the taint of nodes that a team owns.
        retest: of an idle node: it is a balloon that does something.
    """
    only = {"key": "metadata.name", "operator": "In", "values": [record.node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [only]}]}
    user = config.run_as_user
    amounts = {**{name: str(amount) for name, amount in config.resources.items()}, GPU: str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name_of(record.node_uid),
            "namespace": namespace,
            "labels": {LABEL_PREFLIGHT: str(record.level), **({LABEL_BALLOON: "true"} if retest else {})},
            "annotations": {ANNOTATION_TEST: msgspec.json.encode(record).decode()},
        },
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "priorityClassName": PRIORITY_CLASS,
            "restartPolicy": "Never",
            **({"runtimeClassName": config.runtime_class} if config.runtime_class else {}),
            "terminationGracePeriodSeconds": GRACE_S,
            "activeDeadlineSeconds": int(config.start_s + run_s(record.level)),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            "tolerations": [to_dict(each) for each in tolerations(config, team_key)],
            "securityContext": {
                **({"runAsUser": user, "runAsGroup": user} if user is not None else {}),
                "runAsNonRoot": user != 0,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_container(record, gpus, config, amounts, image)],
            "volumes": [
                {"name": "tmp", "emptyDir": {}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }


def _container(
    record: TestRecord, gpus: int, config: PreflightConfig, amounts: dict[str, str], image: str
) -> dict[str, Any]:
    backend = f"cpu:{gpus}" if config.backend == "cpu" else config.backend
    command = ["python", "-m", "muster.gputest", "--level", str(record.level), "-o", "json", "--backend", backend]
    return {
        "name": CONTAINER,
        "image": config.image or image,
        "imagePullPolicy": config.pull_policy,
        "command": [*command, "--expect-gpus", str(gpus), "--node", record.node, "--summary", _RESULT],
        "env": [{"name": "TMPDIR", "value": "/tmp"}],
        "resources": {"requests": amounts, "limits": {GPU: amounts[GPU]}},
        "terminationMessagePath": _RESULT,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
