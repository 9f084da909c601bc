"""The mark on pods of a job that has its nodes to itself: set by the job controller, read by the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from muster.api.names import ANNOTATION_WHOLE_NODE

ANY: Final = "any"


class WholeNode(NamedTuple):
    """A pod takes a whole node.

    Attributes:
        resource: extended resource that counts GPUs; "" if any node can be used.
        gpus: the number of GPUs that the node must have.
    """

    resource: str = ""
    gpus: int = 0


def annotation(whole: WholeNode) -> str:
    """Return the value of the annotation."""
    return f"{whole.resource}={whole.gpus}" if whole.resource else ANY


def whole_node(annotations: Mapping[str, str]) -> WholeNode | None:
    """Parse the annotation; None for a pod that shares its node. An unknown value means any node."""
    text = annotations.get(ANNOTATION_WHOLE_NODE)
    if text is None:
        return None
    resource, _, gpus = text.partition("=")
    return WholeNode(resource, int(gpus)) if gpus.isdecimal() else WholeNode()
