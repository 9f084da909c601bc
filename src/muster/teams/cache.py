"""Indexes all nodes by pool, owner, health and use. Events update the index.

The cost of a change does not depend on the number of nodes, so that one event is handled quickly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from muster.api.lending import NodeUser, states_of
from muster.api.names import LABEL_TEAM
from muster.api.placement import Placement
from muster.kube.objects.meta import is_later
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.teams.config import Selector, TeamsConfig
from muster.teams.plan import Caution, Change
from muster.teams.poolstate import Held, PoolState
from muster.teams.record import UNOWNED, claim_of
from muster.teams.sorted_names import Names
from muster.teams.usage import PodUse, Rank, nodes_of, use_of


class Holdings:
    """The index of nodes that `decide` reads.

    Attributes:
        config: the configuration in force. None if there is no valid one; nodes then keep their owners.
        caution: the problem of the configuration, if it has one.
        nodes: all nodes by name.
        pools: pools of the configuration, in its order.
        damaged: nodes whose label or taint differs from Muster's record.
        strays: nodes that belong to a team although no allocation selects them, by rank.
        moving: nodes for which a write of a new owner is in flight.
    """

    def __init__(self, config: TeamsConfig | None = None) -> None:
        self.config: TeamsConfig | None = None
        self.caution: Caution | None = None
        self.nodes: dict[str, Held] = {}
        self.pools: list[PoolState] = []
        self.damaged: set[str] = set()
        self.strays: dict[Rank, Names] = {}
        self.moving: set[str] = set()
        self._namespaces: dict[str, str] = {}
        self._namespaces_of: Counter[str] = Counter()
        self._by_labels: dict[tuple[str, ...], dict[tuple[str, ...], PoolState]] = {}
        self._uses: dict[str, dict[str, PodUse]] = {}
        self._pods: dict[str, PodUse] = {}
        self._placements: dict[str, frozenset[str]] = {}
        self._kept: dict[str, set[str]] = {}
        self._borrowing: Counter[str] = Counter()
        """Number of pods of each gang that borrows. The gang's reserved slots count as borrowed too."""
        self._pod_key = LABEL_TEAM
        self.configure(config)

    @property
    def team_key(self) -> str | None:
        """Key of the label and taint; None without a configuration."""
        return self.config.team_key if self.config is not None else None

    def configure(self, config: TeamsConfig | None, caution: Caution | None = None) -> None:
        """Set or clear the configuration, and evaluate every node again. Later pods are read with its label key."""
        self.config, self.caution = config, caution
        if config is not None:
            self._pod_key = config.team_key
        self.pools = [PoolState(pool) for pool in config.pools] if config is not None else []
        self.strays = {rank: Names() for rank in Rank}
        self.damaged, self.moving = set(), set()
        self._by_labels = {}
        for pool in self.pools:
            keys, values = _split(pool.config.selector)
            self._by_labels.setdefault(keys, {})[values] = pool
        for held in self.nodes.values():
            self._read(held)
            self._put(held)

    def set_node(self, node: Node) -> bool:
        """Add or update a node; return whether anything relevant changed.

        An event that is older than the answer to a write is ignored.
        """
        held = self.nodes.get(node.name)
        if held is not None and _older(node, held.node):
            return False
        if held is not None and _same(node, held.node):
            held.node = node
            return False
        if held is None:
            held = self.nodes[node.name] = Held(node)
            held.rank = self._rank(node.name)
        else:
            self._take(held)
            held.node = node
        self._read(held)
        if held.target is not None and held.claim.owner == held.target and held.claim.intact:
            held.target = None
        self._put(held)
        return True

    def remove_node(self, name: str) -> None:
        """Remove a node."""
        held = self.nodes.pop(name, None)
        if held is not None:
            self._take(held)

    def set_broken(self, name: str, broken: bool) -> bool:
        """Set whether a node is broken; return whether that changed."""
        held = self.nodes.get(name)
        if held is None or held.broken == broken:
            return False
        self._take(held)
        held.broken = broken
        self._put(held)
        return True

    def begin(self, change: Change) -> bool:
        """Record that a write starts. Return False if the node was replaced, or if another write is in flight."""
        held = self.nodes.get(change.node)
        if held is None or held.node.uid != change.uid or held.target is not None:
            return False
        self._take(held)
        held.target = change.record.team
        self._put(held)
        return True

    def abandon(self, name: str) -> None:
        """Drop the record of a failed write. The node keeps the state that the API server has."""
        held = self.nodes.get(name)
        if held is not None and held.target is not None:
            self._take(held)
            held.target = None
            self._put(held)

    def set_pod(self, pod: Pod) -> bool:
        """Add or update a pod; return whether anything relevant changed."""
        use = use_of(pod, self._pod_key)
        if use == self._pods.get(pod.uid):
            return False
        self.remove_pod(pod.uid)
        if use is not None:
            self._pods[pod.uid] = use
            self._changed(use.node, pod.uid, use)
        return True

    def remove_pod(self, uid: str) -> bool:
        """Remove a pod; return whether it counted."""
        use = self._pods.pop(uid, None)
        if use is not None:
            self._changed(use.node, uid, None)
        return use is not None

    def set_placement(self, placement: Placement) -> None:
        """Add or update a gang's Placement: its nodes are in use, with or without pods."""
        self._keep(placement.key, nodes_of(placement))

    def remove_placement(self, key: str) -> None:
        """Remove a Placement."""
        self._keep(key, frozenset())

    def set_namespace(self, name: str, team: str) -> None:
        """Set the team of a namespace; "" for none, or a deleted namespace."""
        if self._namespaces.get(name, "") == team:
            return
        affected = {use.node for use in self._pods.values() if use.namespace == name and not use.team}
        found = [held for node in affected if (held := self.nodes.get(node)) is not None]
        for held in found:
            self._take(held)
        self._namespaces_of[self._namespaces.pop(name, UNOWNED)] -= 1
        if team:
            self._namespaces[name] = team
            self._namespaces_of[team] += 1
        for held in found:
            self._put(held)

    def has_namespace(self, team: str) -> bool:
        """Return whether the team has a namespace."""
        return self._namespaces_of[team] > 0

    def uses(self, name: str) -> Iterable[PodUse]:
        """Return the pods that make a node count as in use."""
        return self._uses.get(name, {}).values()

    def kept_by(self, name: str) -> Iterable[str]:
        """Return the gangs that reserve a slot on a node, with or without a pod there."""
        return sorted(self._kept.get(name, ()))

    def team_of(self, use: PodUse) -> str:
        """Return the team of a pod; "" if unknown."""
        return use.team or self._namespaces.get(use.namespace, "")

    def _keep(self, key: str, nodes: frozenset[str]) -> None:
        before = self._placements.pop(key, frozenset())
        if nodes:
            self._placements[key] = nodes
        for name in before - nodes:
            self._kept[name].discard(key)
            if not self._kept[name]:
                del self._kept[name]
        for name in nodes - before:
            self._kept.setdefault(name, set()).add(key)
        for name in before ^ nodes:
            self._rerank(name)

    def _changed(self, node: str, uid: str, use: PodUse | None) -> None:
        held = self.nodes.get(node)
        if held is not None:
            self._take(held)
        on_node = self._uses.setdefault(node, {})
        before = on_node.pop(uid, None)
        if use is not None:
            on_node[uid] = use
        if not on_node:
            del self._uses[node]
        borrows = self._note_borrowers(before, use)
        if held is not None:
            held.rank = self._rank(node)
            self._put(held)
        for name in self._placements.get(borrows, ()):
            self._rerank(name)

    def _note_borrowers(self, before: PodUse | None, use: PodUse | None) -> str:
        """Count pods of gangs that borrow; return the gang whose state changed, "" for none."""
        if before is not None and before.borrower:
            self._borrowing[before.gang] -= 1
            if not self._borrowing[before.gang]:
                del self._borrowing[before.gang]
                return before.gang
        if use is not None and use.borrower:
            self._borrowing[use.gang] += 1
            return use.gang if self._borrowing[use.gang] == 1 else ""
        return ""

    def _rerank(self, name: str) -> None:
        held = self.nodes.get(name)
        if held is not None and held.rank is not (rank := self._rank(name)):
            self._take(held)
            held.rank = rank
            self._put(held)

    def _rank(self, name: str) -> Rank:
        kept, uses = self._kept.get(name, ()), self._uses.get(name, {})
        if not (kept or uses):
            return Rank.IDLE
        borrowed = all(self._borrowing[key] for key in kept) and all(use.borrower for use in uses.values())
        return Rank.BORROWED if borrowed else Rank.BUSY

    def _read(self, held: Held) -> None:
        node = held.node
        labels = node.metadata.labels
        held.claim = claim_of(labels, node.spec.taints, node.metadata.annotations, self.team_key)
        held.pool = None
        for keys, pools in self._by_labels.items():
            found = pools.get(tuple(labels.get(key, "\0") for key in keys))
            if found is not None:
                held.pool = found

    def _put(self, held: Held) -> None:
        self._count(held, 1)
        if held.target is None and not held.claim.intact:
            self.damaged.add(held.name)
        if held.target is not None and held.target != held.claim.owner:
            self.moving.add(held.name)
        names = self._names(held)
        if names is not None:
            names.add(held.name)

    def _take(self, held: Held) -> None:
        self._count(held, -1)
        self.damaged.discard(held.name)
        self.moving.discard(held.name)
        names = self._names(held)
        if names is not None:
            names.discard(held.name)

    def _names(self, held: Held) -> Names | None:
        if not held.movable:
            return None
        if held.pool is None:
            return self.strays[held.rank] if held.claim.owner != UNOWNED else None
        cell = (held.owner, held.broken, held.rank)
        names = held.pool.free.get(cell)
        if names is None:
            names = held.pool.free[cell] = Names()
        return names

    def _count(self, held: Held, by: int) -> None:
        pool, owner = held.pool, held.owner
        if pool is None:
            return
        cell = (owner, held.broken)
        pool.total += by
        pool.count[cell] += by
        if held.claim.by_hand:
            pool.by_hand[cell] += by
        users = {NodeUser(self.team_of(use), use.borrower) for use in self.uses(held.name)}
        for state in states_of(owner, users):
            pool.states[state] += by


def _older(new: Node, known: Node) -> bool:
    """Return whether `new` is an older version of the same node than `known`."""
    return new.uid == known.uid and is_later(known, new)


def _same(new: Node, known: Node) -> bool:
    """Return whether two versions of a node are equal for allocation."""
    one, two = new.metadata, known.metadata
    same = one.labels == two.labels and one.annotations == two.annotations and new.spec.taints == known.spec.taints
    return same and one.uid == two.uid


def _split(selector: Selector) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(key for key, _ in selector), tuple(value for _, value in selector)
