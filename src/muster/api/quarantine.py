"""Recognises nodes in quarantine. The scheduler does not use them, whether Muster or an operator set the taint."""

from __future__ import annotations

from muster.api.names import TAINT_QUARANTINE
from muster.kube.objects.node import Node
from muster.kube.objects.taints import HARD_EFFECTS


def quarantined(node: Node) -> bool:
    """Returns whether the node is in quarantine.

    An operator may have written the taint with another value, or NoExecute.
    """
    return any(taint.key == TAINT_QUARANTINE and taint.effect in HARD_EFFECTS for taint in node.spec.taints)
