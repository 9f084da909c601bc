"""Taints and tolerations, as kube-scheduler applies them (k8s.io/component-helpers, scheduling/corev1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from muster.kube.objects.affinity import Toleration
from muster.kube.objects.node import Taint

NO_SCHEDULE, PREFER_NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "PreferNoSchedule", "NoExecute"
HARD_EFFECTS = (NO_SCHEDULE, NO_EXECUTE)
"""Effects that keep a pod off a node."""


TaintId = tuple[str, str]
"""Key and effect: they identify a taint of a node (Kubernetes: validation of nodes)."""


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to a node, all in one write.

    Attributes:
        put: taints that must exist with this value.
        drop: taints that must not exist.
        labels: by key; None removes the label.
        annotations: by key; None removes the annotation.
    """

    put: tuple[Taint, ...] = ()
    drop: tuple[TaintId, ...] = ()
    labels: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    annotations: Mapping[str, str | None] = msgspec.field(default_factory=dict)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Returns whether a toleration tolerates a taint.

    An empty key or effect matches any; the operator Exists matches any value.
    """
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def find_untolerated_taint(
    taints: Iterable[Taint], tolerations: Collection[Toleration], effects: Collection[str] = HARD_EFFECTS
) -> Taint | None:
    """Return the first taint with one of `effects` that is not tolerated, or None."""
    for taint in taints:
        if taint.effect in effects and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None
