"""What cluster autoscalers are told: the whole of a gang that is approved for scaling, or nothing of it.

Autoscalers add nodes for pods with condition PodScheduled False, reason Unschedulable (Kubernetes: Node Autoscaling),
each pod on its own. So the members of a gang get it together, once all of them are there, lack nodes, and somebody
has said that nodes may be bought for them. A bind takes it away: the API server sets the condition then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from muster.scheduler.gangs.gang import UNSCHEDULABLE, Gang
from muster.scheduler.reasons import Reason, Why
from muster.scheduler.snapshot import Snapshot

NOT_APPROVED = "ScaleUpNotApproved"
_LACKS_NODES = frozenset({Why.NOT_ENOUGH_NODES, Why.MORE_THAN_THE_CLUSTER})


class Demand(msgspec.Struct, frozen=True):
    """Write PodScheduled False on pending pods of a gang: `reason` is Unschedulable where nodes are wanted for them.

    `pods` are (name, UID) of those that do not say so yet.
    """

    gang: str
    namespace: str
    pods: tuple[tuple[str, str], ...]
    reason: str
    message: str


def demands(snapshot: Snapshot, waiting: Mapping[str, Reason]) -> Iterator[Demand]:
    """Yield what has to be said, given why gangs wait.

    A gang that waits behind another one is no demand yet: what is added now, that one gets. A demand that has been
    shown stays while it waits for nodes; it is taken back when the gang is no longer whole, or no longer approved.
    """
    for key, reason in waiting.items():
        gang = snapshot.gangs[key]
        if reason.why in _LACKS_NODES and approved(gang) and gang.blocker() is None:
            yield from _demand(gang, UNSCHEDULABLE, reason.text(), shown=False)
    for key in snapshot.shown:
        found = snapshot.gangs.get(key)
        if found is None or not found.pending:
            continue
        blocker = found.blocker()
        if blocker is not None:
            yield from _demand(found, blocker.why.value, blocker.text(), shown=True)
        elif not approved(found):
            yield from _demand(found, NOT_APPROVED, "nobody has approved more nodes for this gang", shown=True)


def _demand(gang: Gang, reason: str, message: str, *, shown: bool) -> Iterator[Demand]:
    pods = tuple((pod.name, pod.uid) for _, pod in sorted(gang.pending.items()) if pod.unschedulable is shown)
    if pods:
        yield Demand(gang.key, gang.namespace, pods, reason, message)


def approved(gang: Gang) -> bool:
    """Whether nodes may be added for it: by its TrainingJob's word, or by that of each pod that has no node."""
    if gang.job is not None and gang.job.scale_up:
        return True
    return bool(gang.pending) and all(pod.scale_up for pod in gang.pending.values())
