"""Matches pod classes with node classes. The pods that run on the nodes do not matter here.

Meaning of taints, selectors and affinity: Kubernetes pages "Taints and Tolerations" and "Assigning Pods to Nodes".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import msgspec

from muster.api.names import LABEL_POOL, LABEL_TEAM
from muster.kube.objects.affinity import NodeSelectorRequirement, NodeSelectorTerm
from muster.kube.objects.node import Taint
from muster.kube.objects.selectors import Requirement, SelectorError, node_term_matches
from muster.kube.objects.taints import PREFER_NO_SCHEDULE, find_untolerated_taint
from muster.scheduler.nodes.node_class import NEEDS_NONE, NodeClass
from muster.scheduler.nodes.pools import Pool, devices
from muster.scheduler.nodes.universes import Universe, Universes, Which
from muster.scheduler.persistent import PersistentMap
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.resources import CORE, short_of
from muster.scheduler.reasons import NodeReason, NodeWhy

UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
FieldGroups = tuple[tuple[NodeSelectorRequirement, ...], ...]


@dataclass(frozen=True, slots=True)
class Match:
    """Verdict about a pod class on a node class.

    Attributes:
        reason: why nodes of the class are rejected; None if they are accepted.
        names: if set, a node's name must meet all requirements of one of these groups.
        score: sum of the weights of the preferred node affinity terms that match.
        unwanted: PreferNoSchedule taints that the pod does not tolerate.
    """

    reason: NodeReason | None
    names: FieldGroups | None = None
    score: int = 0
    unwanted: int = 0

    def serves(self, name: str) -> bool:
        """Return whether the pod may use the node of that name, which has this class."""
        return self.reason is None and self.admits(name)

    def admits(self, name: str) -> bool:
        """Return whether the pod's requirements on node names accept that name."""
        return self.names is None or any(_name_meets(group, name) for group in self.names)


Pair = tuple[PodClass, NodeClass]


class Verdicts(msgspec.Struct, frozen=True):
    """Memo of a `Matcher`: verdicts on pairs of classes, and of their selectors alone; domains that count."""

    matches: PersistentMap[Pair, Match] = msgspec.field(default_factory=PersistentMap)
    selections: PersistentMap[Pair, Match] = msgspec.field(default_factory=PersistentMap)
    universes: Mapping[Which, Universe] = {}

    def of(self, classes: Collection[PodClass]) -> Verdicts:
        """Return only the verdicts on these pod classes."""
        matches = {pair: match for pair, match in self.matches.items() if pair[0] in classes}
        selections = {pair: match for pair, match in self.selections.items() if pair[0] in classes}
        return Verdicts(PersistentMap(matches), PersistentMap(selections), self.universes)


NO_VERDICTS = Verdicts()


class Matcher:
    """Gives verdicts on pairs of classes, each computed once.

    Args:
        pools: some nodes are in pools, so pods that request devices may use only these.
        team_key: key of the taint of nodes that a team owns.
        verdicts: those of an earlier matcher with the same settings.

    Attributes:
        universes: domains that count for spread constraints.
    """

    def __init__(self, *, pools: bool = False, team_key: str = LABEL_TEAM, verdicts: Verdicts = NO_VERDICTS) -> None:
        self.pools = pools
        self.team_key = team_key
        self._verdicts = verdicts
        self._known, self._recent = verdicts.matches.base, dict(verdicts.matches.recent)
        self._selected = dict(verdicts.selections.recent)
        self.universes = Universes(verdicts.universes)

    def match(self, pod: PodClass, node: NodeClass) -> Match:
        """Return the verdict on the two classes."""
        key = (pod, node)
        found = self._known.get(key) or self._recent.get(key)
        if found is None:
            found = self._recent[key] = _match(pod, node, self.team_key, pools=self.pools)
        return found

    def selects(self, pod: PodClass, node: NodeClass, name: str) -> bool:
        """Return whether nodeSelector and required node affinity accept the node."""
        key = (pod, node)
        found = self._verdicts.selections.base.get(key) or self._selected.get(key)
        if found is None:
            found = self._selected[key] = _selection(pod, node)
        return found.serves(name)

    @property
    def verdicts(self) -> Verdicts:
        """All verdicts, for the next matcher. This one must not be used afterwards."""
        known, universes = self._verdicts, self.universes.known
        if len(self._recent) > len(known.matches.recent) or len(self._selected) > len(known.selections.recent):
            matches, selections = known.matches.with_recent(self._recent), known.selections.with_recent(self._selected)
            return Verdicts(matches, selections, universes)
        return known if universes is known.universes else Verdicts(known.matches, known.selections, universes)


class MatcherAfterHandover(Matcher):
    """Verdicts after a change of ownership, for pods that may use a node of any owner.

    The new team of a node is not known here. For pods that depend on the owner, the present verdicts apply.
    """

    def __init__(self, now: Matcher) -> None:
        super().__init__(pools=now.pools, team_key=now.team_key)
        self.universes = now.universes
        self._now = now

    def match(self, pod: PodClass, node: NodeClass) -> Match:
        """Return the verdict on the two classes."""
        found = self._now.match(pod, node)
        if found.reason is None or found.reason.why is not NodeWhy.CHANGES_HANDS:
            return found
        after = super().match(pod, _of_unknown_owner(node, self.team_key))
        return after if after.reason is None else found

    def selects(self, pod: PodClass, node: NodeClass, name: str) -> bool:
        """Return whether nodeSelector and required node affinity accept the node now."""
        return self._now.selects(pod, node, name)


def _of_unknown_owner(node: NodeClass, team_key: str) -> NodeClass:
    """Return the class after an ownership change: without the team's label, with a taint of an unknown team."""
    labels = {key: value for key, value in node.labels.items() if key != team_key}
    others = tuple(taint for taint in node.taints if taint.key != team_key)
    return replace(node, labels=labels, taints=(*others, Taint(key=team_key, effect="NoSchedule")), leaving=False)


def _match(pod: PodClass, node: NodeClass, team_key: str, *, pools: bool) -> Match:
    if node.problem:
        return Match(NodeReason(NodeWhy.NOT_READY, node.problem))
    if node.unschedulable and find_untolerated_taint((UNSCHEDULABLE,), pod.tolerations) is not None:
        return Match(NodeReason(NodeWhy.UNSCHEDULABLE))
    owners = [taint for taint in node.taints if taint.key == team_key] if node.taints else []
    owner = find_untolerated_taint(owners, pod.tolerations)
    if owner is not None:
        return Match(NodeReason(NodeWhy.OTHER_TEAM, owner.value))
    selected = _selection(pod, node)
    if selected.reason is not None:
        return selected
    for claim, terms in pod.volume_terms:
        if not any(node_term_matches(term, node.labels, "") for term in terms):
            return Match(NodeReason(NodeWhy.VOLUME, claim))
    if node.doubt and not pod.tests:
        return Match(NodeReason(NodeWhy.UNTESTED, node.doubt.value))
    taint = find_untolerated_taint(node.taints, pod.tolerations)
    if taint is not None:
        return Match(NodeReason(NodeWhy.TAINT, _taint_text(taint)))
    missing = short_of(pod.request, node.allocatable)
    if missing:
        extended = tuple(resource for resource in missing if resource not in CORE)
        return Match(NodeReason(NodeWhy.TOO_SMALL, ", ".join(extended or missing)))
    whole = pod.whole
    if whole is not None and whole.resource and node.allocatable.get(whole.resource, 0) > whole.gpus:
        have = node.allocatable[whole.resource]
        return Match(NodeReason(NodeWhy.OTHER_GPU_COUNT, f"{have} {whole.resource}, and not {whole.gpus}"))
    if not node.pool.usable and not pod.tests:
        return Match(NodeReason(NodeWhy.MIXED_POOL, node.pool.value))
    if pools and node.pool is Pool.NONE and devices(pod.request) and not pod.tests:
        return Match(NodeReason(NodeWhy.OUTSIDE_POOLS, LABEL_POOL))
    # Checked last: a slot may stay on the node only if every other check passed.
    if node.leaving:
        return Match(NodeReason(NodeWhy.CHANGES_HANDS), selected.names)
    if _too_long_ago(pod, node):
        return Match(NodeReason(NodeWhy.TESTED_TOO_LONG_AGO, f"{pod.tested_within_h} h"), selected.names)
    score = sum(wish.weight for wish in pod.preferred if _labels_meet(wish.preference, node.labels))
    unwanted = sum(
        find_untolerated_taint((taint,), pod.tolerations, (PREFER_NO_SCHEDULE,)) is not None for taint in node.taints
    )
    return Match(None, selected.names, score, unwanted)


def _too_long_ago(pod: PodClass, node: NodeClass) -> bool:
    if not pod.tested_within_h or node.tested_within_h == NEEDS_NONE:
        return False
    return not 0 < node.tested_within_h <= pod.tested_within_h


def _selection(pod: PodClass, node: NodeClass) -> Match:
    for key, value in pod.selector.items():
        if node.labels.get(key) != value:
            return Match(NodeReason(NodeWhy.SELECTOR, f"label {key}={value}"))
    if pod.terms is None:
        return Match(None)
    holding = [term for term in pod.terms if _labels_meet(term, node.labels)]
    if not holding:
        return Match(NodeReason(NodeWhy.AFFINITY))
    if all(term.match_fields for term in holding):
        return Match(None, tuple(term.match_fields for term in holding))
    return Match(None)


def _labels_meet(term: NodeSelectorTerm, labels: dict[str, str]) -> bool:
    """Return whether the term's label requirements hold; a term without requirements matches nothing."""
    if not term.match_expressions and not term.match_fields:
        return False
    return all(_requirement_meets(rule, labels) for rule in term.match_expressions)


def _name_meets(group: tuple[NodeSelectorRequirement, ...], name: str) -> bool:
    return all(_requirement_meets(rule, {"metadata.name": name}) for rule in group)


def _requirement_meets(rule: NodeSelectorRequirement, values: dict[str, str]) -> bool:
    """Return whether a requirement holds; an unknown operator never holds."""
    try:
        return Requirement(rule.key, rule.operator, rule.values).matches(values)
    except SelectorError:
        return False


def _taint_text(taint: Taint) -> str:
    return f"{taint.key}{'=' + taint.value if taint.value else ''}:{taint.effect}"
