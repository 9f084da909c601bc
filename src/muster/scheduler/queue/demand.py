"""Marks pods of waiting gangs as unschedulable for cluster autoscalers: all members of an approved gang, or none.

Autoscalers add nodes for pods with condition PodScheduled False, reason Unschedulable (Kubernetes: Node Autoscaling),
each pod on its own. So the members of a gang get the condition together: when all exist, they lack nodes, and the
user or operator approved scaling. A bind removes it, because the API server then sets PodScheduled True.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from muster.scheduler.gangs.gang import UNSCHEDULABLE, Gang
from muster.scheduler.reasons import Reason, Why
from muster.scheduler.snapshot import Snapshot

NOT_APPROVED = "ScaleUpNotApproved"
_LACKS_NODES = (Why.NOT_ENOUGH_NODES, Why.MORE_THAN_THE_CLUSTER)


class Demand(msgspec.Struct, frozen=True):
    """Action: write PodScheduled False on pending pods. With reason Unschedulable, autoscalers may add nodes.

    `pods` are (name, UID) of the pods without this condition.
    """

    gang: str
    namespace: str
    pods: tuple[tuple[str, str], ...]
    reason: str
    message: str


def demands(snapshot: Snapshot, waiting: Mapping[str, Reason]) -> Iterator[Demand]:
    """Yield the conditions to write, given why gangs wait.

    A gang behind another one is not a demand yet, because the gang ahead would get new nodes. A demand stays while
    its gang waits for nodes. It is withdrawn when the gang is incomplete or not approved any more.
    """
    for key, reason in waiting.items():
        if reason.why not in _LACKS_NODES:
            continue
        gang = snapshot.gangs[key]
        if approved(gang) and gang.blocker() is None:
            yield from _demand(gang, UNSCHEDULABLE, reason.text(), shown=False)
    for key in snapshot.shown:
        found = snapshot.gangs.get(key)
        if found is None or not found.pending:
            continue
        blocker = found.blocker()
        if blocker is not None:
            yield from _demand(found, blocker.why.value, blocker.text(), shown=True)
        elif not approved(found):
            yield from _demand(
                found,
                NOT_APPROVED,
                "more nodes for this gang are not approved (annotate muster.dev/scale-up: approved)",
                shown=True,
            )


def _demand(gang: Gang, reason: str, message: str, *, shown: bool) -> Iterator[Demand]:
    pods = tuple((pod.name, pod.uid) for _, pod in sorted(gang.pending.items()) if pod.unschedulable is shown)
    if pods:
        yield Demand(gang.key, gang.namespace, pods, reason, message)


def approved(gang: Gang) -> bool:
    """Return whether scaling up is approved for the gang, by its TrainingJob or by each pending pod."""
    if gang.job is not None and gang.job.scale_up:
        return True
    return bool(gang.pending) and all(pod.scale_up for pod in gang.pending.values())
