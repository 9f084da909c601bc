"""Changes a copy of the cluster's state for hypothetical questions of commands: more nodes, or ended gangs."""

from __future__ import annotations

from muster.kube.objects.container import QuantityValue
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node, NodeCondition, NodeSpec, NodeStatus
from muster.scheduler.decide import DEFAULTS, decide
from muster.scheduler.explain.what_if import best_kind
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.memo import matcher_for
from muster.scheduler.plan import Settings, WritePlacement
from muster.scheduler.pods.resources import WHOLE
from muster.scheduler.state import ClusterState

_HOSTNAME = "kubernetes.io/hostname"


def suppose_nodes(state: ClusterState, gang: Gang, count: int) -> int:
    """Add `count` copies of the node that can take most pods of the gang when empty.

    Returns the number of added nodes, 0 if no node can take any.
    """
    snapshot = state.snapshot()
    matcher = matcher_for(snapshot)
    for cls in gang.counts:
        like = best_kind(snapshot, matcher, cls)
        if like is None:
            continue
        model = snapshot.nodes[next(iter(like.names))]
        free: dict[str, QuantityValue] = {
            name: f"{value}m" if name == "cpu" else str(value) for name, value in like.free.items() if name != WHOLE
        }
        for number in range(count):
            name = f"(new node {number})"
            labels = model.labels | ({_HOSTNAME: name} if _HOSTNAME in model.labels else {})
            state.suppose_tested(name, model.name)
            state.set_node(
                Node(
                    metadata=ObjectMeta(name=name, uid=name, labels=labels),
                    spec=NodeSpec(taints=model.taints),
                    status=NodeStatus(allocatable=free, conditions=(NodeCondition(type="Ready", status="True"),)),
                )
            )
        return count
    return 0


def suppose_ended(state: ClusterState, gang: Gang, *, now: float) -> None:
    """Remove the gang's pods and placement, as if its job had ended."""
    if gang.seen is not None:
        state.remove_placement(gang.seen)
    for uid in list(gang.pods):
        state.remove_pod(uid, now)


def suppose_placed(state: ClusterState, gang: Gang, *, now: float, settings: Settings = DEFAULTS) -> None:
    """Place all other gangs as the next plan would. Earlier gangs get the added nodes first."""
    for action in decide(state.snapshot(), now, settings).actions:
        if isinstance(action, WritePlacement) and action.gang != gang.key:
            state.begin_write(state.gangs[action.gang], action.placement)
