"""Who is on which node: what allocation has to know of pods and placements."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from muster.api.names import LABEL_BALLOON, LABEL_BORROWED, LABEL_GANG, SCHEDULER_NAME
from muster.api.placement import Placement
from muster.kube.pod import Pod

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of the API server's picture of a static pod (Kubernetes: static pods)."""


class Rank(IntEnum):
    """What a node that changes hands would disturb; the lowest moves first."""

    IDLE = 0
    BORROWED = 1
    BUSY = 2


class PodUse(msgspec.Struct, frozen=True):
    """A pod that counts.

    Attributes:
        node: where it is.
        namespace: its namespace, whose team counts where `team` is "".
        gang: which gang it belongs to, for people.
        team: what its own label says.
        borrower: it has to leave anyway once the owner wants the node.
    """

    node: str
    namespace: str
    gang: str
    team: str
    borrower: bool


def use_of(pod: Pod, team_key: str) -> PodUse | None:
    """Read a pod; None for one that does not count: without a node, finished, a balloon, part of its node, of others.

    Of others is what another scheduler placed without naming a team, such as the system's own pods.
    """
    spec, labels = pod.spec, pod.metadata.labels
    if not spec.node_name or pod.finished or labels.get(LABEL_BALLOON) == "true":
        return None
    team = labels.get(team_key, "")
    borrower = LABEL_BORROWED in labels
    if not (spec.scheduler_name == SCHEDULER_NAME or team or borrower):
        return None
    owners = pod.metadata.owner_references
    if MIRROR in pod.metadata.annotations or any(each.controller and each.kind == "DaemonSet" for each in owners):
        return None
    gang = labels.get(LABEL_GANG) or next((each.name for each in owners if each.controller), pod.name)
    return PodUse(spec.node_name, pod.namespace, f"{pod.namespace}/{gang}", team, borrower)


def nodes_of(placement: Placement) -> frozenset[str]:
    """The nodes a gang keeps, also those where its pod is being replaced; none once it is released."""
    if placement.status.phase == "Released":
        return frozenset()
    return frozenset(slot.node for slot in placement.spec.slots)
