"""Taints and tolerations, as kube-scheduler applies them (k8s.io/component-helpers, scheduling/corev1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from muster.kube.affinity import Toleration
from muster.kube.node import Taint

NO_SCHEDULE, PREFER_NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "PreferNoSchedule", "NoExecute"
HARD_EFFECTS = (NO_SCHEDULE, NO_EXECUTE)
"""Effects that keep a pod off a node."""


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
    """Return the first taint with one of `effects` that no toleration bears, or None."""
    for taint in taints:
        if taint.effect in effects and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None
