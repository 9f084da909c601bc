"""Arithmetic on requested and available resources (`kube/objects/resources.py`)."""

from __future__ import annotations

from muster.kube.objects.resources import PODS, Amounts

WHOLE = "whole-node"
"""Internal resource for the parts of a node. A pod of a job with whole nodes takes all parts of its node. Any other
pod that Muster places takes one part. So the two never share a node, and every calculation of room (preemption,
backfill, projections) includes the rule. Pods of other schedulers take none."""
WHOLE_PARTS = 1 << 20
CORE = frozenset({"cpu", "memory", "ephemeral-storage", PODS, WHOLE})
UNLIMITED = 1 << 62


def times_fits(request: Amounts, free: Amounts) -> int:
    """Return how many such pods fit into `free`."""
    best = UNLIMITED
    for resource, wanted in request.items():
        times = free.get(resource, 0) // wanted
        if times <= 0:
            return 0
        if times < best:
            best = times
    return best


def short_of(request: Amounts, free: Amounts) -> tuple[str, ...]:
    """Return the resources that `free` lacks for the request, extended resources first."""
    missing = [resource for resource, wanted in request.items() if free.get(resource, 0) < wanted]
    return tuple(sorted(missing, key=lambda resource: (resource in CORE, resource)))


def minus(left: Amounts, right: Amounts) -> dict[str, int]:
    """Return left - right; a resource that `left` does not have is left out."""
    return {resource: value - right.get(resource, 0) for resource, value in left.items()}


def gpus(request: Amounts) -> int:
    """Return the number of GPUs: the resources whose names end in `/gpu`, else the largest of other devices."""
    named = sum(value for name, value in request.items() if name.endswith("/gpu"))
    return named or max((value for name, value in request.items() if "/" in name), default=0)
