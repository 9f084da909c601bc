"""Decides which nodes are trusted with work. A node needs a passed test with its present UID, boot and driver.

The absence of a taint never means trust. A kubelet puts its taints on a node only when it creates the Node object
(Kubernetes: KubeletConfiguration, registerWithTaints), so a node that rebooted comes back without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from muster.api.names import ANNOTATION_TESTED_WITHIN, HEALTH_IGNORE, LABEL_HEALTH
from muster.api.preflight import PreflightSpec
from muster.api.training_job import TESTED_WITHIN_MAX_H
from muster.kube.objects.node import Node
from muster.kube.objects.resources import allocatable

GPU: Final = "nvidia.com/gpu"
_MIG: Final = "nvidia.com/mig-"
_PRESENT: Final = "nvidia.com/gpu.present"
_DRIVER: Final = "nvidia.com/cuda.driver-version.full"
_DRIVER_PARTS: Final = ("nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev")


class Doubt(StrEnum):
    """Why a node is not trusted, as words that can follow a count; empty for a trusted node."""

    NONE = ""
    NEVER = "no test yet"
    OTHER_NODE = "another node of its name was tested"
    REBOOTED = "rebooted since its test"
    NEW_DRIVER = "another driver since its test"
    FAILED = "failed its test"


class Identity(msgspec.Struct, frozen=True):
    """The identity of a node that a record must match. `driver` is empty if the node does not report it."""

    node_uid: str
    boot_id: str
    driver: str = ""


class Tested(msgspec.Struct, frozen=True):
    """The fields of a record that trust needs: the node's identity, the result, and the end in seconds since the epoch.

    `revoked`: the controller saw another driver after the test.
    """

    identity: Identity
    passed: bool
    at: float
    revoked: bool = False


def tested(spec: PreflightSpec) -> Tested:
    """Return the fields of a record that trust needs."""
    identity = Identity(spec.node_uid, spec.boot_id, spec.driver)
    return Tested(identity, spec.passed, spec.time.timestamp(), spec.revoked_time is not None)


def doubt(node: Identity, record: Tested | None) -> Doubt:
    """Return why the node is not trusted.

    The driver is compared if both the record and the node name one. A node names it in a label of GPU feature
    discovery. If the driver changes in a running boot on a node without these labels, the node's agent sees it, and the
    controller revokes the record (fleet/preflight).
    """
    if record is None:
        return Doubt.NEVER
    of = record.identity
    if of.node_uid != node.node_uid:
        return Doubt.OTHER_NODE
    if of.boot_id != node.boot_id:
        return Doubt.REBOOTED
    if record.revoked or (of.driver and node.driver and of.driver != node.driver):
        return Doubt.NEW_DRIVER
    return Doubt.NONE if record.passed else Doubt.FAILED


def identity(node: Node) -> Identity:
    """Return the present identity of the node."""
    info = node.status.node_info
    return Identity(node.uid, info.boot_id if info is not None else "", driver(node.metadata.labels))


def driver(labels: Mapping[str, str]) -> str:
    """The driver's version from the labels of GPU feature discovery (new or old form); empty without labels."""
    return labels.get(_DRIVER) or ".".join(filter(None, (labels.get(part) for part in _DRIVER_PARTS)))


def has_gpus(amounts: Mapping[str, int], labels: Mapping[str, str]) -> bool:
    """Returns whether a node has GPUs, by its device plugin (amounts) or by GPU feature discovery (labels)."""
    if amounts.get(GPU) or labels.get(_PRESENT) == "true":
        return True
    return any(amount > 0 and resource.startswith(_MIG) for resource, amount in amounts.items())


def is_ignored(labels: Mapping[str, str]) -> bool:
    """Returns whether an operator excluded the node from remediation and tests. Muster then uses it without a test."""
    return labels.get(LABEL_HEALTH) == HEALTH_IGNORE


def needs_test(node: Node) -> bool:
    """Returns whether the node has to pass a test before it is trusted."""
    labels = node.metadata.labels
    return has_gpus(allocatable(node), labels) and not is_ignored(labels)


def tested_within_h(annotations: Mapping[str, str]) -> int:
    """Most hours since the test of a pod's nodes; 0 if the pod has no such limit. Raises ValueError."""
    text = annotations.get(ANNOTATION_TESTED_WITHIN)
    if text is None:
        return 0
    hours = int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else 0
    if not 1 <= hours <= TESTED_WITHIN_MAX_H:
        raise ValueError(
            f"annotation {ANNOTATION_TESTED_WITHIN} is {text!r}: write whole hours, 1 to {TESTED_WITHIN_MAX_H}"
        )
    return hours
