"""The pod that tests a node: it takes all GPUs of this one node, and has only the rights that it needs."""

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
from muster.kube.objects.affinity import Toleration
from muster.kube.objects.struct import to_dict

PRIORITY_CLASS: Final = "muster-preflight"
PREFIX: Final = "muster-preflight-"
CONTAINER: Final = "test"
ANNOTATION_TEST: Final = "muster.dev/preflight-test"
"""Annotation of test pods: node and boot under test (a `TestRecord` as JSON)."""
GRACE_S: Final = 1
"""Not zero: otherwise the pod's object is gone while its process still holds the GPUs (Kubernetes: forced deletion)."""
_SLACK_S: Final = 120.0
"""Added to the tests' own deadlines, to wait for processes that do not start (docs/gputest.md, "Levels")."""
_RESULT: Final = "/dev/termination-log"


class TestRecord(msgspec.Struct, frozen=True, rename="camel"):
    """The purpose of a test's pod."""

    node: str
    node_uid: str
    boot_id: str
    level: int
    backend: str
    made_with: str = ""


def made_with(config: PreflightConfig) -> str:
    """Return a hash of the settings that change how a test's pod is created."""
    said = (
        config.image, config.pull_policy, config.run_as_user, config.runtime_class, config.backend, config.start_s,
    )  # fmt: skip
    text = msgspec.json.encode((*said, config.tolerations, config.resources), order="sorted")
    return hashlib.sha256(text).hexdigest()[:16]


def run_s(level: int) -> float:
    """Return how long a test of that level may run. By then it has ended itself, even if every step hung."""
    return sum(step.deadline_s for step in LEVELS[level]) + _SLACK_S


def tolerations(config: PreflightConfig, team_key: str) -> tuple[Toleration, ...]:
    """Return the tolerations of tests: taints of nodes that wait for tests, and permanent taints of GPU nodes."""
    own = (TAINT_PREFLIGHT, TAINT_QUARANTINE, TAINT_POOL, team_key, GPU)
    return (
        *(Toleration(key=key, operator="Exists") for key in own),
        *(each.toleration() for each in config.tolerations),
    )


def name_of(node_uid: str) -> str:
    """Return the name of a node's test. It is fixed, so that a node has one test even with two controllers."""
    return PREFIX + hashlib.sha256(node_uid.encode()).hexdigest()[:16]


def manifest(
    record: TestRecord, gpus: int, config: PreflightConfig, *, namespace: str, image: str, team_key: str, retest: bool
) -> dict[str, Any]:
    """Return the pod as a manifest.

    Args:
        record: the purpose of the test.
        gpus: the number of GPUs of the node.
        config: has the image, tolerations and start time.
        namespace: Muster's namespace.
        image: Muster's image, used if the configuration does not name another.
        team_key: key of the taint of nodes that a team owns.
        retest: whether it tests an idle node: the pod is then a balloon.
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
