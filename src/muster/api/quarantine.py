"""Nodes that are taken out of use: whoever put them there, nobody is given one meanwhile."""

from __future__ import annotations

from muster.api.names import TAINT_QUARANTINE
from muster.kube.node import Node
from muster.kube.taints import HARD_EFFECTS


def quarantined(node: Node) -> bool:
    """Whether the node is in quarantine; a person may have written the taint with another value, or NoExecute."""
    return any(taint.key == TAINT_QUARANTINE and taint.effect in HARD_EFFECTS for taint in node.spec.taints)
