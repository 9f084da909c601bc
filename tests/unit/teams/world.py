"""A cluster for decide: nodes, pods and a configuration that tests change; plans are carried out at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from muster.api.names import LABEL_BORROWED, LABEL_TEAM
from muster.api.placement import PlacedSlot, Placement, PlacementSpec, PlacementStatus
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node, NodeSpec, Taint
from muster.kube.objects.pod import Pod, PodSpec, PodStatus
from muster.kube.objects.taints import NodeChange
from muster.teams.cache import Holdings
from muster.teams.config import parse
from muster.teams.decide import decide
from muster.teams.plan import Plan, Standing

NOW = 1_800_000_000.0
POOL = "gpu=h100"


def node(name: str, **labels: str) -> Node:
    meta = ObjectMeta(name=name, uid=f"uid-{name}", resource_version="1", labels={"gpu": "h100", **labels})
    return Node(metadata=meta)


def shares(team_key: str = LABEL_TEAM, running: str = "Wait", pool: str = "h100", /, **amounts: Any) -> str:
    """A ConfigMap with one pool."""
    lines = [f"- {{nodeSelector: {{gpu: {pool}}}, team: {team}, amount: {amount}}}" for team, amount in amounts.items()]
    return "\n".join([f"teamKey: {team_key}", f"runningGangs: {running}", "allocations:", *lines])


def applied(node: Node, change: NodeChange) -> Node:
    """The node as the API server has it after the write."""
    gone = {*change.drop, *((taint.key, taint.effect) for taint in change.put)}
    taints = tuple(taint for taint in node.spec.taints if (taint.key, taint.effect) not in gone) + change.put
    meta = node.metadata
    labels = {k: v for k, v in {**meta.labels, **change.labels}.items() if v is not None}
    annotations = {k: v for k, v in {**meta.annotations, **change.annotations}.items() if v is not None}
    version = str(int(meta.resource_version) + 1)
    meta = msgspec.structs.replace(meta, labels=labels, annotations=annotations, resource_version=version)
    return msgspec.structs.replace(node, metadata=meta, spec=NodeSpec(taints=taints))


class World:
    def __init__(self, text: str = "", nodes: int = 0) -> None:
        self.holdings = Holdings()
        self.now = NOW
        for number in range(nodes):
            self.set_node(node(f"n{number:02}"))
        if text:
            self.configure(text)

    def configure(self, text: str) -> None:
        self.holdings.configure(parse(text))

    def node(self, name: str) -> Node:
        return self.holdings.nodes[name].node

    def set_node(self, new: Node) -> None:
        self.holdings.set_node(new)

    def edit(
        self, name: str, *, labels: dict[str, str | None] | None = None, taints: tuple[Taint, ...] | None = None
    ) -> None:
        """Change a node by hand."""
        changed = applied(self.node(name), NodeChange(labels=labels or {}))
        kept = self.node(name).spec.taints if taints is None else taints
        self.set_node(msgspec.structs.replace(changed, spec=NodeSpec(taints=kept)))

    def add_pod(self, name: str, on: str, *, team: str = "", borrower: bool = False, scheduler: str = "muster") -> None:
        labels = {LABEL_TEAM: team} if team else {}
        if borrower:
            labels[LABEL_BORROWED] = "true"
        meta = ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", labels=labels)
        spec = PodSpec(node_name=on, scheduler_name=scheduler)
        self.holdings.set_pod(Pod(metadata=meta, spec=spec, status=PodStatus(phase="Running")))

    def end_pod(self, name: str) -> None:
        self.holdings.remove_pod(f"uid-{name}")

    def place(self, gang: str, *nodes: str, released: bool = False) -> None:
        slots = tuple(PlacedSlot(slot=slot, node=name) for slot, name in enumerate(nodes))
        spec = PlacementSpec(gang=gang, gang_uid=gang, size=max(1, len(nodes)), slots=slots)
        status = PlacementStatus(phase="Released" if released else "Bound")
        meta = ObjectMeta(name=gang, namespace="default")
        self.holdings.set_placement(Placement(metadata=meta, spec=spec, status=status))

    def plan(self) -> Plan:
        return decide(self.holdings, self.now)

    def run(self) -> Plan:
        """Decide and carry out."""
        plan = self.plan()
        for change in plan.changes:
            self.set_node(applied(self.node(change.node), change.write()))
        return plan

    def owners(self) -> dict[str, str]:
        return {name: held.claim.owner for name, held in sorted(self.holdings.nodes.items())}

    def owned(self) -> dict[str, int]:
        """Nodes by owner, those of the rest left out."""
        return {owner: count for owner, count in sorted(Counter(self.owners().values()).items()) if owner}

    def standing(self, team: str) -> Standing:
        return next(each for each in self.plan().standings if each.team == team)
