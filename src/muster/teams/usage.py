"""Use of nodes by pods and placements, reduced to what allocation needs."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from muster.api.names import LABEL_BALLOON, LABEL_BORROWED, LABEL_GANG, MIRROR, SCHEDULER_NAME
from muster.api.placement import Placement
from muster.kube.objects.pod import Pod


class Rank(IntEnum):
    """What a change of owner would disturb on a node; the lowest moves first."""

    IDLE = 0
    BORROWED = 1
    BUSY = 2


class PodUse(msgspec.Struct, frozen=True):
    """A pod that counts as use of its node.

    Attributes:
        node: its node.
        namespace: its namespace, which has the team if `team` is "".
        gang: its gang, for display.
        team: the team in its own label.
        borrower: it leaves when the owner needs the node.
    """

    node: str
    namespace: str
    gang: str
    team: str
    borrower: bool


def use_of(pod: Pod, team_key: str) -> PodUse | None:
    """Return the use by a pod; None for a pod that does not count.

    These pods do not count:

    - pods without a node, finished pods and balloons;
    - pods that belong to their node (DaemonSet and static pods);
    - pods of other schedulers without a team, such as system pods.
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
    """Return the nodes that a gang reserves, including those of pods being replaced; none after its release."""
    if placement.status.phase == "Released":
        return frozenset()
    return frozenset(slot.node for slot in placement.spec.slots)
