"""The API server's state for checkers: facts from the stored JSON, without the scheduler's code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fuzz.shapes import LABEL_APART, LABEL_GROUP, OF_OTHERS
from muster.api.names import (
    ANNOTATION_BACKFILLED,
    ANNOTATION_PRIORITY,
    ANNOTATION_RESTARTABLE,
    ANNOTATION_WHOLE_NODE,
    LABEL_BALLOON,
    LABEL_BORROWED,
    LABEL_TEAM,
)
from muster.embedded.item import Item
from muster.embedded.objects import Obj, items, section
from muster.embedded.store import Store
from muster.kube.objects.quantity import milli

ENDED = ("Succeeded", "Failed")
WHOLE, PARTS = "whole node", 1000
"""A job that has its nodes to itself takes all parts of each, every other pod takes one."""
Place = tuple[int, int, int, str]
"""A place in the queue; the lowest comes first."""
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


class PodFacts:
    """One version of a pod."""

    __slots__ = (
        "apart", "attempt", "backfilled_for", "bundle", "created", "disrupted", "ended", "gang", "grace_s", "name",
        "node", "pool", "priority", "queue_priority", "rank", "requests", "restartable", "running", "size", "slot",
        "team", "terminating", "terms", "tolerations", "uid", "without",
    )  # fmt: skip

    def __init__(self, obj: Obj) -> None:
        meta, spec, status = obj["metadata"], obj["spec"], section(obj, "status")
        labels, notes = section(meta, "labels"), section(meta, "annotations")
        self.uid: str = meta["uid"]
        self.name: str = meta["name"]
        self.created: str = meta["creationTimestamp"]
        uid = notes.get("muster.dev/gang-uid", "")
        self.gang: str = f"{labels['muster.dev/gang']}/{uid}" if uid else ""
        self.bundle = f"{OF_OTHERS}{labels[LABEL_GROUP]}" if LABEL_GROUP in labels else self.gang
        """The gang, or the group of others that it belongs to: what is bound together."""
        self.apart = LABEL_APART in labels
        self.size = int(notes.get("muster.dev/gang-size") or labels.get("size") or 1)
        self.slot = int(labels.get("muster.dev/slot") or labels.get("slot") or 0)
        self.attempt = int(notes.get("muster.dev/attempt", 0))
        self.node: str = spec.get("nodeName", "")
        self.priority = int(spec.get("priority", 0))
        self.queue_priority = int(notes.get(ANNOTATION_PRIORITY, 0))
        self.restartable = notes.get(ANNOTATION_RESTARTABLE) == "true"
        self.backfilled_for: str = notes.get(ANNOTATION_BACKFILLED, "")
        """`namespace/name` of the gang for which its node was reserved when it was bound on its own; "" for none."""
        self.tolerations: list[Obj] = items(spec, "tolerations")
        self.pool: str = section(spec, "nodeSelector").get("pool", "")
        self.terms = _terms(spec)
        self.without = _without(self.terms)
        self.team: str = labels.get(LABEL_TEAM, "")
        self.rank = 2 if LABEL_BALLOON in labels else 1 if LABEL_BORROWED in labels else 0
        """The highest leaves first: balloons, then borrowers, then all others."""
        self.grace_s = float(spec.get("terminationGracePeriodSeconds", 30))
        self.requests = {**_requests(spec), WHOLE: PARTS if ANNOTATION_WHOLE_NODE in notes else 1}
        phase = status.get("phase", "")
        self.ended = phase in ENDED
        self.running = phase == "Running"
        self.terminating = "deletionTimestamp" in meta
        self.disrupted = any(one["type"] == "DisruptionTarget" for one in items(status, "conditions"))

    @property
    def live(self) -> bool:
        """Returns whether it counts as a member: neither leaving nor ended."""
        return not (self.terminating or self.ended)


class NodeFacts:
    """One version of a node, and when it was current."""

    __slots__ = (
        "allocatable", "boot_id", "labels", "name", "ready", "since", "taints", "uid", "unschedulable", "until",
    )  # fmt: skip

    def __init__(self, obj: Obj, now: float) -> None:
        spec, status = section(obj, "spec"), section(obj, "status")
        self.name: str = obj["metadata"]["name"]
        self.uid: str = obj["metadata"]["uid"]
        self.boot_id: str = section(status, "nodeInfo").get("bootID", "")
        self.labels: Mapping[str, str] = section(obj["metadata"], "labels")
        self.taints = [taint for taint in items(spec, "taints") if taint["effect"] != "PreferNoSchedule"]
        self.unschedulable = bool(spec.get("unschedulable"))
        self.allocatable = {name: milli(text) for name, text in section(status, "allocatable").items()} | {WHOLE: PARTS}
        self.ready = any(one["type"] == "Ready" and one["status"] == "True" for one in items(status, "conditions"))
        self.since = now
        self.until = float("inf")

    def fits(self, pod: PodFacts) -> bool:
        """Returns whether the node would have room for the pod if it were empty."""
        return all(self.allocatable.get(what, 0) >= amount for what, amount in pod.requests.items())

    def takes(self, pod: PodFacts) -> str:
        """Why this version of the node is not for the pod; "" where it is. Room is not looked at."""
        if not self.ready:
            return "it is not ready"
        if self.unschedulable and not tolerates(pod, CORDON):
            return "it is cordoned"
        for taint in self.taints:
            if not tolerates(pod, taint):
                return f"its taint {taint['key']} is not tolerated"
        if pod.pool and self.labels.get("pool") != pod.pool:
            return f"it is not of the pool {pod.pool}"
        if pod.terms and not any(_matches(term, self.labels) for term in pod.terms):
            return "its labels are not what the pod asks for"
        if self.name in pod.without:
            return "the pod excludes it"
        return ""


class PlacementFacts:
    """One version of a Placement."""

    __slots__ = ("attempt", "backfilled_for", "gang", "name", "phase", "preempting", "reason", "size", "slots", "uid")

    def __init__(self, obj: Obj) -> None:
        spec = obj["spec"]
        self.name: str = obj["metadata"]["name"]
        self.uid: str = obj["metadata"]["uid"]
        self.gang = f"{spec['gang']}/{spec['gangUID']}"
        self.size: int = spec["size"]
        self.attempt: int = spec.get("attempt", 0)
        self.phase: str = section(obj, "status").get("phase", "Open")
        self.reason: str = section(obj, "status").get("reason", "")
        backfill = section(spec, "backfill")
        name = backfill.get("gang", "").rpartition("/")[2]
        self.backfilled_for = f"{name}/{backfill.get('gangUID', '')}" if backfill else ""
        """The gang for which its nodes were reserved when it got them; "" for none."""
        self.preempting = bool(spec.get("preempting"))
        self.slots: dict[int, tuple[str, str]] = {
            slot["slot"]: (slot["node"], slot.get("nodeUID", "")) for slot in items(spec, "slots")
        }


class View:
    """All facts, kept up to date by the store. `fail` ends the run."""

    def __init__(self, store: Store, clock: Callable[[], float], fail: Callable[[BaseException], None]) -> None:
        self.fail = fail
        self.pods: dict[str, PodFacts] = {}
        self.gangs: defaultdict[str, dict[str, PodFacts]] = defaultdict(dict)
        self.on_node: defaultdict[str, dict[str, PodFacts]] = defaultdict(dict)
        self.nodes: defaultdict[str, list[NodeFacts]] = defaultdict(list)
        self.placements: dict[str, PlacementFacts] = {}
        self.jobs: dict[str, str] = {}
        self.limited: set[str] = set()
        """Gangs with a time limit."""
        self.hands_on = False
        """Whether a person writes what changes now: no controller is to blame for it."""
        self.specs: dict[str, Obj] = {}
        """Of training jobs, by gang; also of those that are gone."""
        self.saved: set[str] = set()
        """Gangs that have reported a checkpoint."""
        self.asked: dict[str, tuple[int, float]] = {}
        """How often gangs were asked to leave backfilled nodes, by their status, and since when that is known."""
        self.edited: set[str] = set()
        """Names of jobs whose status a person has edited."""
        self._arrivals: dict[str, str] = {}
        self._resumed: dict[str, str] = {}
        """When gangs were last resumed, by the status of their jobs."""
        self._statuses: dict[str, Obj] = {}
        """Of jobs by UID, as last stored."""
        self.checkers: list[Any] = []
        self._clock = clock
        self._store = store

    @contextmanager
    def by_hand(self) -> Iterator[None]:
        """In this context, writes count as made by a person."""
        self.hands_on = True
        try:
            yield
        finally:
            self.hands_on = False

    def begin(self) -> None:
        """Look at what is there, and follow it from now on."""
        for table in self._store.tables.values():
            for item in table.items.values():
                self._changed(table.resource, None, item)
        self._store.listeners.append(self._changed)

    @property
    def now(self) -> float:
        """The virtual time."""
        return self._clock()

    def node(self, name: str) -> NodeFacts | None:
        """The present version of a node; None if it is gone."""
        versions = self.nodes.get(name)
        return versions[-1] if versions and versions[-1].until == float("inf") else None

    def object(self, storage: str, namespace: str, name: str) -> Obj | None:
        """An object as it is stored; None if it does not exist."""
        found = self._store.define(storage).items.get(f"{namespace}/{name}")
        return found.object() if found is not None else None

    def arrival(self, pod: PodFacts) -> str:
        """Returns the arrival of the gang's first pod, or of its job; of the pod itself if it is alone."""
        return self._arrivals[pod.bundle] if pod.bundle else pod.created

    def place(self, pod: PodFacts) -> Place:
        """Returns the pod's place among those that want the same nodes: the lowest has most right to them."""
        return pod.rank, -pod.priority, -pod.queue_priority, self.arrival(pod)

    def last_place(self, pod: PodFacts) -> Place:
        """The same by the latest arrival that the scheduler may go by.

        A job that was resumed queues from then on. A gang without a TrainingJob, all of whose pods were replaced,
        queues from the first of the new pods: a scheduler that started since has not seen the old ones.
        """
        members = self.gangs.get(pod.bundle, {}).values() if pod.bundle and pod.bundle not in self.specs else ()
        oldest = min((member.created for member in members), default="")
        return (*self.place(pod)[:3], max(self.arrival(pod), self._resumed.get(pod.bundle, ""), oldest))

    def usable(self, node: str, pod: PodFacts, uid: str, within_s: float) -> str:
        """Why no version of the node in the last `within_s` takes the pod; "" where one does."""
        why = "there is no such node"
        for version in reversed(self.nodes.get(node, ())):
            if version.until < self.now - within_s:
                break
            if uid and version.uid != uid:
                why = "it is another node of that name"
                continue
            why = self._why_not(version, pod, within_s)
            if not why:
                return ""
        return why

    def _why_not(self, version: NodeFacts, pod: PodFacts, within_s: float) -> str:
        """Why this version of the node is not for the pod, by what was known in the last `within_s`; "" where it is."""
        return version.takes(pod)

    def refused_lately(self, node: str, pod: PodFacts, uid: str, within_s: float) -> bool:
        """Returns whether at some moment of the last `within_s` the node refused the pod, or was missing."""
        since = self.now - within_s
        covered = self.now
        for version in reversed(self.nodes.get(node, ())):
            if version.until < since:
                break
            if version.until < covered or version.uid != uid or version.takes(pod):
                return True
            covered = version.since
        return covered > since

    def _changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        if resource == "pods":
            self._pod(old, new)
        elif resource == "nodes":
            self._node(old, new)
        elif resource == "placements.muster.dev":
            self._placement(old, new)
        elif resource == "trainingjobs.muster.dev":
            self._job(old, new)

    def _job(self, old: Item | None, new: Item | None) -> None:
        item = new or old
        assert item is not None
        if new is None:
            self.jobs[item.uid] = "gone"
            self._statuses.pop(item.uid, None)
            return
        job = item.object()
        status = section(job, "status")
        self.jobs[item.uid] = status.get("phase", "")
        gang, created = f"{item.name}/{item.uid}", job["metadata"]["creationTimestamp"]
        self.specs[gang] = job["spec"]
        if "timeLimitSeconds" in job["spec"]:
            self.limited.add(gang)
        if "lastCheckpoint" in status:
            self.saved.add(gang)
        asked = int(section(status, "backfill").get("asked", 0))
        if self.asked.get(gang, (0, 0.0))[0] != asked:
            self.asked[gang] = asked, self.now
        self._arrivals[gang] = min(self._arrivals.get(gang, created), created)
        for condition in items(status, "conditions"):
            if condition["type"] == "Suspended" and condition["status"] != "True":
                self._resumed[gang] = condition["lastTransitionTime"]
        before = self._statuses.get(item.uid, {}) if old is not None else {}
        self._statuses[item.uid] = status
        for checker in self.checkers:
            checker.job(item.name, before, status)

    def _pod(self, old: Item | None, new: Item | None) -> None:
        item = new or old
        assert item is not None
        before = self.pods.get(item.uid)
        pod = PodFacts(item.object()) if new is not None else None
        if before is not None:
            self.gangs[before.bundle].pop(before.uid, None)
            self.on_node[before.node].pop(before.uid, None)
        if pod is None:
            self.pods.pop(item.uid, None)
        else:
            self.pods[pod.uid] = pod
            self.gangs[pod.bundle][pod.uid] = pod
            self.on_node[pod.node][pod.uid] = pod
            self._arrivals[pod.bundle] = min(self._arrivals.get(pod.bundle, pod.created), pod.created)
        for checker in self.checkers:
            checker.pod(before, pod)

    def _node(self, old: Item | None, new: Item | None) -> None:
        item = new or old
        assert item is not None
        versions = self.nodes[item.name]
        if versions and versions[-1].until == float("inf"):
            versions[-1].until = self.now
        if new is not None:
            versions.append(NodeFacts(new.object(), self.now))
        for checker in self.checkers:
            checker.node(item.name)

    def _placement(self, old: Item | None, new: Item | None) -> None:
        item = new or old
        assert item is not None
        before = self.placements.get(item.uid)
        placement = PlacementFacts(item.object()) if new is not None else None
        if placement is None:
            self.placements.pop(item.uid, None)
        else:
            self.placements[item.uid] = placement
        for checker in self.checkers:
            checker.placement(before, placement)


def tolerates(pod: PodFacts, taint: Obj) -> bool:
    """Returns whether a pod tolerates a taint (Kubernetes docs, "Taints and Tolerations")."""
    for toleration in pod.tolerations:
        if toleration.get("effect") and toleration["effect"] != taint["effect"]:
            continue
        key = toleration.get("key", "")
        if key and key != taint["key"]:
            continue
        if toleration.get("operator") == "Exists" or (key and toleration.get("value", "") == taint.get("value", "")):
            return True
    return False


def _requests(spec: Obj) -> dict[str, int]:
    total: dict[str, int] = {"pods": 1000}
    for container in items(spec, "containers"):
        asked = section(container, "resources")
        for name, text in {**section(asked, "limits"), **section(asked, "requests")}.items():
            total[name] = total.get(name, 0) + milli(text)
    return total


def _terms(spec: Obj) -> list[Obj]:
    """Returns the pod's node selector terms; a node must match one of them."""
    affinity = section(section(spec, "affinity"), "nodeAffinity")
    return items(section(affinity, "requiredDuringSchedulingIgnoredDuringExecution"), "nodeSelectorTerms")


def _matches(term: Obj, labels: Mapping[str, str]) -> bool:
    """Returns whether labels match a term, names aside (Kubernetes docs, "Assigning Pods to Nodes")."""
    for each in items(term, "matchExpressions"):
        there, operator = each["key"] in labels, each["operator"]
        listed = labels.get(each["key"]) in each.get("values", ())
        if not {"In": there and listed, "NotIn": not listed, "Exists": there, "DoesNotExist": not there}[operator]:
            return False
    return True


def _without(terms: list[Obj]) -> frozenset[str]:
    fields = (field for term in terms for field in items(term, "matchFields") if field["operator"] == "NotIn")
    return frozenset(name for field in fields for name in field["values"])
