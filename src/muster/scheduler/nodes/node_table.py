"""Table of all nodes with their usage, indexed by free room."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from muster.api.names import LABEL_TEAM
from muster.api.preflight import Preflight
from muster.kube.objects.node import Node, Taint
from muster.kube.objects.taints import find_untolerated_taint
from muster.scheduler.gangs.gang import PodRecord
from muster.scheduler.nodes.buckets import Buckets
from muster.scheduler.nodes.daemons import Daemons, DaemonSet
from muster.scheduler.nodes.domains import Domains
from muster.scheduler.nodes.node_record import NodeClasses, NodeRecord
from muster.scheduler.nodes.trust import Trust
from muster.scheduler.pods.pod_class import ClassTable, PodClass
from muster.scheduler.pods.relations import Peers, Term


class NodeTable:
    """Counts pods and reserved slots on nodes; `settle` updates the indexes for touched nodes."""

    def __init__(self, classes: ClassTable, team_key: str = LABEL_TEAM, trust: Trust | None = None) -> None:
        self.nodes: dict[str, NodeRecord] = {}
        self.domains = Domains(self.nodes)
        self.empty_domains = Domains(self.nodes)
        self._daemons = Daemons(classes)
        self.buckets = Buckets(self.domains, ordered=True)
        self.empty_buckets = Buckets(self.empty_domains)
        self._class_numbers = itertools.count()
        self._classes = NodeClasses(frozenset(), self._class_numbers)
        self._dirty: dict[str, None] = {}
        self._allocatable: dict[str, int] = {}
        self.pools: set[str] = set()
        """Nodes with the pool label, as of the last `settle`."""
        self._team_key = team_key
        self.owners: dict[str, str] = {}
        """Node -> team, of those that a team owns."""
        self._leaving: frozenset[str] = frozenset()
        self._trust = trust

    def set(self, node: Node) -> bool:
        """Add or update a node; return whether it replaced a node of that name or changed teams."""
        record = self._record(node.name)
        before, labels = (record.uid, self._team_taints(record)), self.domains.labels(node.name)
        record.update(node)
        if record.allocatable == self._allocatable:  # nodes that are alike share it
            record.allocatable = self._allocatable
        else:
            self._allocatable = record.allocatable
        record.leaving = node.name in self._leaving
        if self._trust is not None:
            self._trust.take_over(record, node)
            self._trust.judge(record)
        self._dirty[node.name] = None
        owner = record.labels.get(self._team_key, "")
        if owner:
            self.owners[node.name] = owner
        elif self.owners:
            self.owners.pop(node.name, None)
        if before[0] != record.uid or labels != record.labels:
            self._moved(node.name, labels)
        return before != (record.uid, self._team_taints(record))

    def remove(self, name: str) -> bool:
        """Remove a node, but keep what is counted on it. Return whether it was known."""
        record = self.nodes.get(name)
        if record is None or not record.uid:
            return False
        labels = record.labels
        self.owners.pop(name, None)
        record.uid, record.problem, record.node_class, record.stale = "", "does not exist", None, True
        self._dirty[name] = None
        self._moved(name, labels)
        return True

    def set_tested(self, name: str, record: Preflight | None) -> None:
        """Set or (None) remove the record of a node's tests."""
        if self._trust is None:
            return
        if record is not None:
            self._trust.set(record)
        else:
            self._trust.remove(name)
        node = self.nodes.get(name)
        if node is not None:
            self._trust.judge(node)
            node.judged = None
            self._dirty[name] = None

    def age(self, ages: frozenset[int], now: float) -> None:
        """Update the test age of touched nodes, and of those whose age bracket ends now.

        Args:
            ages: maximum test ages in hours that pods require.
            now: seconds since the epoch.
        """
        trust = self._trust
        if trust is None:
            return
        if ages != trust.ages:
            trust.ages = ages
            self._dirty.update(dict.fromkeys(self.nodes))
        for name in trust.due(now):
            if name in self.nodes:
                self._dirty[name] = None
        for name in self._dirty:
            record, before = self.nodes[name], self.nodes[name].tested_within_h
            trust.age(record, now)
            if record.tested_within_h != before:
                record.judged = None

    def set_leaving(self, names: frozenset[str]) -> None:
        """Set which nodes will change teams soon."""
        for name in names ^ self._leaving:
            record = self.nodes.get(name)
            if record is not None:
                record.leaving, record.judged = name in names, None
                self._dirty[name] = None
        self._leaving = names

    def set_daemons(self, daemons: DaemonSet) -> None:
        """Add or update a DaemonSet, for the pods it will create on nodes."""
        if self._daemons.set(daemons):
            self._touch_all()

    def remove_daemons(self, uid: str) -> None:
        """Remove a DaemonSet."""
        self._daemons.remove(uid)
        self._touch_all()

    def exists(self, name: str, uid: str = "") -> bool:
        """Return whether the node exists, and has that UID if one is given."""
        record = self.nodes.get(name)
        return record is not None and bool(record.uid) and uid in ("", record.uid)

    def keeps_out(self, name: str, cls: PodClass | None) -> bool:
        """Return whether the node's team keeps pods of the class off the node."""
        owners = self._team_taints(self.nodes[name])
        return bool(owners) and cls is not None and find_untolerated_taint(owners, cls.tolerations) is not None

    def _team_taints(self, record: NodeRecord) -> list[Taint]:
        return [taint for taint in record.taints if taint.key == self._team_key] if record.taints else []

    def count(self, pod: PodRecord) -> None:
        """Count the pod on its node, until it has finished or is gone."""
        where = pod.node if not pod.finished else ""
        if where != pod.counted_on:
            self.uncount(pod)
            if where and pod.cls is not None:
                record = self._record(where)
                record.take(pod.cls.request, pod.cls.ports, foreign=not pod.gang)
                record.pods.add(pod.uid)
                pod.counted_on = where
                self._dirty[where] = None
                self._daemons.came(pod, where)
                self._meet(pod.cls, where, foreign=not pod.gang)
        if where and pod.terminating and pod.cls is not None and pod.cls.matches:
            for domains in self._domains(foreign=not pod.gang):
                domains.leave(pod.uid, pod.cls, where)

    def take_held(self, pod: PodRecord) -> bool:
        """Replace the reservation of the pod's slot by the pod.

        Returns False if there was none. Free room stays the same.
        """
        record, key = self.nodes.get(pod.node), (pod.gang, pod.slot)
        if record is None or pod.cls is None or record.holds.get(key) is not pod.cls:
            return False
        if pod.counted_on or pod.finished or pod.terminating:
            return False
        del record.holds[key]
        record.pods.add(pod.uid)
        pod.counted_on = pod.node
        self._daemons.came(pod, pod.node)
        if self._daemons.some:
            self._dirty[pod.node] = None
        return True

    def uncount(self, pod: PodRecord) -> None:
        """Stop counting the pod on its node."""
        if not pod.counted_on or pod.cls is None:
            return
        record = self.nodes[pod.counted_on]
        record.take(pod.cls.request, pod.cls.ports, foreign=not pod.gang, sign=-1)
        record.pods.discard(pod.uid)
        self._dirty[pod.counted_on] = None
        self._daemons.went(pod, pod.counted_on)
        self._meet(pod.cls, pod.counted_on, foreign=not pod.gang, sign=-1)
        if pod.terminating:
            for domains in self._domains(foreign=not pod.gang):
                domains.left(pod.uid)
        pod.counted_on = ""

    def hold(self, name: str, gang: str, slot: int, cls: PodClass | None) -> None:
        """Reserve room for a slot without a pod on the node; the whole node if its size is unknown."""
        record = self._record(name)
        record.holds[gang, slot] = cls
        if cls is None:
            record.fully_held += 1
        else:
            record.take(cls.request, cls.ports, foreign=False)
            self._meet(cls, name, foreign=False)
        self._dirty[name] = None

    def unhold(self, name: str, gang: str, slot: int) -> None:
        """Release what `hold` reserved."""
        record = self.nodes[name]
        cls = record.holds.pop((gang, slot))
        if cls is None:
            record.fully_held -= 1
        else:
            record.take(cls.request, cls.ports, foreign=False, sign=-1)
            self._meet(cls, name, foreign=False, sign=-1)
        self._dirty[name] = None

    def arriving(self, name: str, gang: str, slot: int, *, is_: bool) -> None:
        """Set whether a pod of the slot is being bound to the node."""
        record = self.nodes.get(name)
        if record is not None:
            record.arriving.add((gang, slot)) if is_ else record.arriving.discard((gang, slot))
            self._dirty[name] = None

    def is_arriving(self, name: str, gang: str, slot: int) -> bool:
        """Return whether a pod of the slot is being bound to the node."""
        return (gang, slot) in self.nodes[name].arriving

    def _touch_all(self) -> None:
        """Mark all nodes for an update of their indexes."""
        self._dirty = dict.fromkeys(self.nodes)
        for record in self.nodes.values():
            record.stale = True

    def touch(self, names: Iterable[str]) -> None:
        """Mark nodes on which gangs changed."""
        self._dirty.update(dict.fromkeys(name for name in names if name in self.nodes))

    @property
    def touched(self) -> Iterable[str]:
        """Return the nodes that were touched since the last `settle`."""
        return self._dirty

    def touched_gangs(self, pods: Mapping[str, PodRecord]) -> Sequence[str]:
        """Return the keys of gangs on nodes that were touched since the last `settle`; some repeatedly."""
        found: list[str] = []
        for name in self._dirty:
            record = self.nodes[name]
            if record.pods:
                found += [pods[uid].gang for uid in record.pods if uid in pods]
            if record.holds:
                found += [key for key, _ in record.holds]
        return found

    def settle(self, label_keys: frozenset[str]) -> bool:
        """Update the buckets; return whether all node classes were rebuilt because pods read more labels."""
        rebuilt = label_keys != self._classes.label_keys
        if rebuilt:
            self._classes = NodeClasses(label_keys, self._class_numbers)
            self._daemons.forget()
            self._touch_all()
        whole, some = self.buckets.move_whole, self._daemons.some
        newcomers: list[NodeRecord] = []  # consecutive nodes without a bucket, empty and of one class
        for name in self._dirty:
            record = self.nodes[name]
            node_class = self._classes.of(record) if record.uid else None
            first_seen = record.bucket is None and record.empty_bucket is None
            if first_seen and node_class is not None and not some and record.untouched:
                if newcomers and newcomers[0].node_class is not node_class:
                    self._enter_whole(newcomers)
                    newcomers = []
                record.node_class = node_class
                newcomers.append(record)
                continue
            if newcomers:
                self._enter_whole(newcomers)
                newcomers = []
            if node_class is not record.node_class:
                record.node_class, record.stale = node_class, True
                self.domains.touch((name,))
                self.empty_domains.touch((name,))
                (self.pools.add if node_class is not None and node_class.pool else self.pools.discard)(name)
            elif node_class is None:
                self.pools.discard(name)
            if node_class is not None and not some and record.untouched:
                record.bucket = whole(name, record.bucket, node_class)
                if record.stale:
                    record.empty_bucket = self.empty_buckets.move_whole(name, record.empty_bucket, node_class)
                    record.stale = False
                continue
            free = record.free_for_new()
            if some:
                free = self._daemons.leave_room(record, free)
            record.bucket = self.buckets.move(name, record.bucket, node_class, free, record.ports)
            if record.stale and node_class is not None and not some and not record.foreign_used:
                record.empty_bucket = self.empty_buckets.move_whole(name, record.empty_bucket, node_class)
                record.stale = False
            elif record.stale or some:
                free = self._daemons.leave_room(record, record.free_when_empty())
                record.empty_bucket = self.empty_buckets.move(name, record.empty_bucket, node_class, free, ())
                record.stale = False
            if not record.uid and not record.pods and not record.holds:
                del self.nodes[name]
        if newcomers:
            self._enter_whole(newcomers)
        self._dirty.clear()
        self.buckets.sort()
        return rebuilt

    def _enter_whole(self, records: Sequence[NodeRecord]) -> None:
        """Index empty nodes of one class that have no bucket. At the start these are most nodes of the cluster."""
        node_class = records[0].node_class
        assert node_class is not None
        names = dict.fromkeys([record.name for record in records])
        bucket = self.buckets.enter_whole(names, node_class)
        empty_bucket = self.empty_buckets.enter_whole(names, node_class)
        for record in records:
            record.bucket, record.empty_bucket, record.stale = bucket, empty_bucket, False
        self.domains.touch(names)
        self.empty_domains.touch(names)
        if node_class.pool:
            self.pools.update(names)
        else:
            self.pools.difference_update(names)

    def _meet(self, cls: PodClass, name: str, *, foreign: bool, sign: int = 1) -> None:
        """Count a pod in the node's domains, if it has rules about other pods or is subject to some."""
        if cls.subjects:
            for domains in self._domains(foreign=foreign):
                domains.count(cls, name, sign)

    def sum_by(self, terms: Iterable[Term]) -> None:
        """Keep sums of these sets of pods by the domains of their topology keys."""
        for peers, key in terms:
            self.domains.sum_by(peers, key)
            self.empty_domains.sum_by(peers, key)

    def drop_sums(self, sets: Collection[Peers]) -> None:
        """Stop maintaining sums for these sets of pods."""
        self.domains.drop_sums(sets)
        self.empty_domains.drop_sums(sets)

    def _domains(self, *, foreign: bool) -> tuple[Domains, ...]:
        return (self.domains, self.empty_domains) if foreign else (self.domains,)

    def _moved(self, name: str, labels: Mapping[str, str]) -> None:
        for domains in (self.domains, self.empty_domains):
            domains.move(name, labels, domains.labels(name))
        record = self.nodes[name]
        for index, bucket in ((self.buckets.all, record.bucket), (self.empty_buckets.all, record.empty_bucket)):
            if bucket is not None:
                index.journal.add(name)

    def _record(self, name: str) -> NodeRecord:
        record = self.nodes.get(name)
        if record is None:
            record = self.nodes[name] = NodeRecord(name)
        return record
