"""How costs grow with the nodes: numbers of objects, and memory of an API server."""

from __future__ import annotations

from typing import Final

from muster.api.finding import Growth, Scale
from muster.doctor.costs.cost import GROWS
from muster.doctor.samples import Labels


def resource_name(labels: Labels) -> str:
    """Return the resource of a series as kubectl writes it: `pods`, or `leases.coordination.k8s.io`."""
    group, resource = labels.get("group", ""), labels.get("resource", "")
    return f"{resource}.{group}" if group else resource


def objects_growth(resource: str) -> Growth:
    """Return how the number of objects of a resource grows with the nodes."""
    return Growth.PER_NODE if resource in GROWS else Growth.CONSTANT


def product(left: Growth, right: Growth) -> Growth:
    """Return the growth of a product, at most squared."""
    laws = (Growth.CONSTANT, Growth.PER_NODE, Growth.PER_NODE_SQUARED)
    return laws[min(left.power + right.power, 2)]


RESIDENT: Final = "process_resident_memory_bytes"
EMPTY_BYTES: Final = 250 * 2**20
"""Memory of an API server 1.36 without nodes (measured). Only what is above it grows with the nodes."""
_NODES_LEAST: Final = 20
"""With fewer nodes, memory does not show the growth per node."""


def planned_memory_bytes(resident: float, scale: Scale) -> float | None:
    """Return the memory of an API server at the planned size; None if its memory today does not show the growth."""
    if scale.nodes < _NODES_LEAST or resident <= EMPTY_BYTES:
        return None
    each = (resident - EMPTY_BYTES) / scale.nodes
    return resident + each * (scale.planned - scale.nodes)
