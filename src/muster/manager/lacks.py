"""Passes the scheduler's unmet demand to scaling, so that these two domains do not import each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster.fleet.scaling.demands import Demands
from muster.fleet.scaling.snapshot import GangDemand, Members
from muster.kube.objects.affinity import NodeSelectorTerm
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.resources import WHOLE
from muster.scheduler.queue.unmet_demand import Lack


def listener(demands: Demands) -> Callable[[Sequence[Lack]], None]:
    """Return the function that the scheduler calls with its unmet demand after each plan."""

    def update(lacks: Sequence[Lack]) -> None:
        demands.update([(demand_of(lack), lack.about) for lack in lacks])

    return update


def demand_of(lack: Lack) -> GangDemand:
    """Convert the gang's demand to the form that scaling uses."""
    members = tuple(_members(cls, count) for cls, count in lack.classes)
    return GangDemand(key=lack.gang, name=lack.name, members=members, approved=lack.approved)


def _members(cls: PodClass, count: int) -> Members:
    return Members(
        count=count,
        request={name: amount for name, amount in cls.request.items() if name != WHOLE},
        selector=cls.selector,
        terms=_all_terms(cls),
        tolerations=cls.tolerations,
        alone=cls.alone,
        whole=cls.whole,
    )


def _all_terms(cls: PodClass) -> tuple[NodeSelectorTerm, ...] | None:
    """Combines the pod's own terms with those of its volumes; a node must match one of the combined terms."""
    every = [terms for terms in (cls.terms, *(terms for _, terms in cls.volume_terms)) if terms is not None]
    if not every:
        return None
    combined = list(every[0])
    for terms in every[1:]:
        combined = [_both(left, right) for left in combined for right in terms]
    return tuple(combined)


def _both(left: NodeSelectorTerm, right: NodeSelectorTerm) -> NodeSelectorTerm:
    return NodeSelectorTerm(
        match_expressions=(*left.match_expressions, *right.match_expressions),
        match_fields=(*left.match_fields, *right.match_fields),
    )
