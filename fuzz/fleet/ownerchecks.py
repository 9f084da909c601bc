"""Invariants on every write of a node: one owner, no node taken from a gang, other writers' fields kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fuzz.checks import GIVEN_UP, Checker, just_bound
from fuzz.fleet.frontdoor import FrontDoor
from fuzz.fleet.people import People, recorded_team
from fuzz.fleet.shares import Shares
from fuzz.view import PodFacts, View
from muster.api.names import LABEL_TEAM
from muster.embedded.item import Item
from muster.embedded.objects import Obj, items, section

JOINING = "muster.dev/joining"
_OURS = (LABEL_TEAM, JOINING, "node.kubernetes.io/unschedulable")
"""Keys of taints that controllers may write, the last one through the cordon."""


class NodesAndOwners(Checker):
    """Each node has one owner, by label, taint and record alike, and keeps the fields of other writers.

    Args:
        view: what the API server holds.
        door: reports who writes nodes.
        people: who set labels by hand.
        stale_s: the greatest age of the knowledge behind a write when it takes effect.
    """

    name = "no node of two teams"

    def __init__(self, view: View, door: FrontDoor, people: People, stale_s: float) -> None:
        super().__init__(view, stale_s)
        self._people = people
        self._since: dict[str, float] = {}
        door.node_written.append(self._written)

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """Note since when a pod is on its node."""
        if new is not None and just_bound(old, new):
            self._since[new.uid] = self.view.now

    def _written(self, client: str, old: Item | None, new: Item | None) -> None:
        if old is None or new is None or old.uid != new.uid or not client.startswith("controller-"):
            return
        before, after = old.object(), new.object()
        self._foreign(client, before, after)
        hand = self._people.by_hand.get(new.name)
        if hand is not None and _said(after) != (hand, [hand]):
            self.fail(f"{client} changed {new.name}, which a user gave to {hand}: {_said(after)}")
        if hand is None and (_said(after), recorded_team(after)) != (_said(before), recorded_team(before)):
            self._one_owner(client, after)
            if recorded_team(after) != recorded_team(before):
                self._changed_hands(client, new.name, recorded_team(before), recorded_team(after))

    def _foreign(self, client: str, before: Obj, after: Obj) -> None:
        """Taints and labels of others are as they were."""
        for what, one, two in (
            ("taints", _foreign_taints(before), _foreign_taints(after)),
            ("labels", _foreign_labels(before), _foreign_labels(after)),
        ):
            if one != two:
                self.fail(f"{client} changed the {what} of {after['metadata']['name']} from {one} to {two}")

    def _one_owner(self, client: str, node: Obj) -> None:
        (label, taints), record = _said(node), recorded_team(node)
        if taints != ([label] if label else []) or record != label:
            self.fail(f"{client} wrote {node['metadata']['name']}: label {label}, taints {taints}, record {record}")

    def _changed_hands(self, client: str, name: str, old: str, new: str) -> None:
        """The node holds no gang, except one that has only just come; borrowers and balloons leave anyway."""
        if self._people.may_move(self.stale_s):
            return
        since = self.view.now - self.stale_s
        pods = [
            pod.name
            for pod in self.view.on_node[name].values()
            if not pod.ended and pod.rank == 0 and self._since.get(pod.uid, self.view.now) < since
        ]
        if pods:
            self.fail(f"{client} gave {name} of {old or 'no team'} to {new or 'no team'} under {', '.join(pods)}")

    def at_rest(self, shares: Mapping[str, Shares]) -> None:
        """Each team owns its share, and the pool owns the rest."""
        pools: dict[str, Counter[str]] = {}
        for name in self.view.nodes:
            node = self.view.node(name)
            if node is None:
                continue
            owner = node.labels.get(LABEL_TEAM, "")
            pools.setdefault(node.labels.get("pool", ""), Counter())[owner] += 1
            taints = [taint["value"] for taint in node.taints if taint["key"] == LABEL_TEAM]
            if taints != ([owner] if owner else []):
                self.fail(f"{name} is labelled {owner} and tainted {taints}")
        for pool, owned in pools.items():
            self._adds_up(pool, owned, shares.get(pool, Shares()))

    def _adds_up(self, pool: str, owned: Counter[str], shares: Shares) -> None:
        total = sum(owned.values())
        by_percent = sum(owned[team] for team in shares.percent)
        wrong = [team for team, count in shares.count.items() if owned[team] != count]
        wrong += [t for t, part in shares.percent.items() if not 0 <= owned[t] - total * part // 100 <= 1]
        wrong += [team for team in owned if team and team not in shares.count and team not in shares.percent]
        if wrong or by_percent != shares.of_percent(total):
            self.fail(f"pool {pool} of {total} nodes: {dict(owned)} are owned, {shares} is what was asked for")


def holders(view: View, node: str) -> list[str]:
    """Returns the users of a node: pods except balloons, and slots that are kept there."""
    found = [pod.name for pod in view.on_node[node].values() if not pod.ended and pod.rank < 2]
    found += [
        f"a slot of {placement.name}"
        for placement in view.placements.values()
        if placement.phase not in GIVEN_UP and any(name == node for name, _ in placement.slots.values())
    ]
    return found


def _said(node: Obj) -> tuple[str, list[str]]:
    """The team that the label names, and those that taints name."""
    taints = [taint.get("value", "") for taint in items(section(node, "spec"), "taints") if taint["key"] == LABEL_TEAM]
    return section(node["metadata"], "labels").get(LABEL_TEAM, ""), taints


def _foreign_taints(node: Obj) -> list[tuple[str, str, str]]:
    taints = items(section(node, "spec"), "taints")
    return sorted((one["key"], one.get("value", ""), one["effect"]) for one in taints if one["key"] not in _OURS)


def _foreign_labels(node: Obj) -> dict[str, str]:
    labels = section(node["metadata"], "labels")
    return {key: value for key, value in labels.items() if key != LABEL_TEAM}
