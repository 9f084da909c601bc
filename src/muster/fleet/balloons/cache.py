"""Tracks what pods and gangs take of each node, updated by events, so that a change does not add up all pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from muster.api.names import LABEL_BALLOON
from muster.api.placement import Placement
from muster.fleet.balloons.deployment import DELETION_COST, GOES_FIRST, LABEL_BALLOON_POOL
from muster.fleet.balloons.snapshot import Balloon
from muster.kube.clock import steady_time
from muster.kube.objects.pod import Pod
from muster.kube.objects.resources import pod_request


class _Taking(msgspec.Struct, frozen=True):
    node: str
    amounts: Mapping[str, int]


class Occupancy:
    """The resources and slots taken on each node, updated by changes of pods and Placements.

    Args:
        clock: seconds since the epoch. A balloon's age counts from when it was first seen, because the API server's
            clock may be behind this one.
    """

    def __init__(self, clock: Callable[[], float] = steady_time) -> None:
        self._clock = clock
        self.balloons: dict[str, Balloon] = {}
        """By UID, without those that are being deleted."""
        self._taking: dict[str, _Taking] = {}
        self._taken: dict[str, Counter[str]] = {}
        self._slots: dict[str, tuple[str, ...]] = {}
        self._promised: Counter[str] = Counter()

    def taken(self, node: str) -> Mapping[str, int]:
        """Return what pods except balloons take of the node: CPU in millicores, other resources in units."""
        return self._taken.get(node, {})

    def promised(self, node: str) -> bool:
        """Return whether a gang has a slot there."""
        return self._promised[node] > 0

    def pod_changed(self, old: Pod | None, new: Pod | None) -> bool:
        """Take a change of a pod. Returns whether it changes anything here."""
        changed = False
        if old is not None and (new is None or new.uid != old.uid):
            changed = self._forget(old.uid)
        if new is None:
            return changed
        labels = new.metadata.labels
        if labels.get(LABEL_BALLOON) == "true" and LABEL_BALLOON_POOL in labels:  # tests of idle nodes have no pool
            return self._balloon(new) or changed
        taking = _taking(new)
        if self._taking.get(new.uid) == taking:
            return changed
        changed = self._forget(new.uid) or changed
        if taking is not None:
            self._taking[new.uid] = taking
            self._taken.setdefault(taking.node, Counter()).update(taking.amounts)
            changed = True
        return changed

    def placement_changed(self, old: Placement | None, new: Placement | None) -> bool:
        """Take a change of a Placement. Returns whether it changes anything here."""
        key = (new or old).key  # type: ignore[union-attr]
        before = self._slots.pop(key, ())
        after: tuple[str, ...] = ()
        if new is not None and new.status.phase != "Released":
            after = tuple(slot.node for slot in new.spec.slots)
            self._slots[key] = after
        self._promised.subtract(before)
        self._promised.update(after)
        for node in before:
            if not self._promised[node]:
                del self._promised[node]
        return before != after

    def _balloon(self, pod: Pod) -> bool:
        meta = pod.metadata
        before = self.balloons.pop(pod.uid, None)
        if meta.deletion_timestamp is None and pod.status.phase not in ("Succeeded", "Failed"):
            self.balloons[pod.uid] = Balloon(
                namespace=pod.namespace,
                name=pod.name,
                uid=pod.uid,
                pool=meta.labels.get(LABEL_BALLOON_POOL, ""),
                node=pod.spec.node_name,
                since=before.since if before is not None else self._clock(),
                marked=meta.annotations.get(DELETION_COST) == GOES_FIRST,
            )
        return self.balloons.get(pod.uid) != before

    def _forget(self, uid: str) -> bool:
        if self.balloons.pop(uid, None) is not None:
            return True
        taking = self._taking.pop(uid, None)
        if taking is None:
            return False
        left = self._taken[taking.node]
        left.subtract(taking.amounts)
        if not any(left.values()):
            del self._taken[taking.node]
        return True


def _taking(pod: Pod) -> _Taking | None:
    """Return what a pod takes; None if it is not bound or has ended."""
    if not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
        return None
    return _Taking(pod.spec.node_name, pod_request(pod.spec))
