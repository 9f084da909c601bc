"""A pod's rules about other pods: affinity, anti-affinity and topology spread, parsed once per pod class.

Rules: Kubernetes pages "Assigning Pods to Nodes" (inter-pod affinity and anti-affinity) and "Pod Topology Spread
Constraints"; matchLabelKeys of affinity: KEP-3633, of spread: KEP-3243.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from muster.kube.objects.affinity import LabelSelector, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from muster.kube.objects.pod import Pod
from muster.kube.objects.selectors import (
    DOES_NOT_EXIST,
    EVERYTHING,
    EXISTS,
    IN,
    NOT_IN,
    NOTHING,
    Requirement,
    Selector,
    from_label_selector,
)

HARD, SOFT = "DoNotSchedule", "ScheduleAnyway"
HONOR, IGNORE = "Honor", "Ignore"
_OPERATORS = frozenset({IN, NOT_IN, EXISTS, DOES_NOT_EXIST})


@dataclass(frozen=True, slots=True)
class Who:
    """Pods that one term selects, in namespaces given by name or by label."""

    selector: Selector
    namespaces: frozenset[str]
    namespace_selector: Selector

    def matches(self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> bool:
        """Return whether the term selects a pod of the namespace with these labels."""
        here = namespace in self.namespaces or self.namespace_selector.matches(namespace_labels)
        return here and self.selector.matches(labels)


@dataclass(frozen=True, slots=True, eq=False)
class Peers:
    """A set of pods: those that all of `terms` select. `PeerTable` interns them."""

    number: int
    terms: tuple[Who, ...]


Intern = Callable[[tuple[Who, ...]], Peers]
Term = tuple[Peers, str]
"""(pods, topology key)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A topologySpreadConstraint: limit on a domain's number of `peers` above that of the emptiest domain."""

    peers: Peers
    key: str
    max_skew: int
    min_domains: int
    honor_affinity: bool
    honor_taints: bool


@dataclass(frozen=True, slots=True)
class Wish:
    """A preferred term: a domain of `key` with such pods scores `weight`, which is negative for anti-affinity."""

    peers: Peers
    key: str
    weight: int


@dataclass(frozen=True, slots=True)
class Relations:
    """A pod's rules about other pods.

    Attributes:
        near: pods that match every required affinity term; the node's domain of each `near_keys` must have one.
        apart: required anti-affinity.
        spread: constraints with DoNotSchedule; `even`: those with ScheduleAnyway.
        wishes: preferred affinity and anti-affinity.
    """

    near: Peers | None = None
    near_keys: tuple[str, ...] = ()
    apart: tuple[Term, ...] = ()
    spread: tuple[Spread, ...] = ()
    wishes: tuple[Wish, ...] = ()
    even: tuple[Spread, ...] = ()

    @property
    def about(self) -> set[Peers]:
        """The sets of pods that the rules and preferences select."""
        found = {peers for peers, _ in self.apart} | {wish.peers for wish in self.wishes}
        found |= {rule.peers for rule in (*self.spread, *self.even)}
        return found | {self.near} if self.near is not None else found

    @property
    def by_domain(self) -> Iterable[Term]:
        """Yield the sets of pods that the rules and preferences count by domain, each with the topology key."""
        yield from self.apart
        yield from ((wish.peers, wish.key) for wish in self.wishes)
        if self.near is not None:
            yield from ((self.near, key) for key in self.near_keys)


NONE = Relations()


def asks_of_others(pod: Pod) -> bool:
    """Return whether the pod has any such rule or preference."""
    affinity = pod.spec.affinity
    return bool(pod.spec.topology_spread_constraints) or (
        affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)
    )


def relations(pod: Pod, intern: Intern, *, ours: bool) -> Relations | None:
    """Return the pod's rules; None without rules. For pods of other schedulers, only required anti-affinity counts."""
    if not asks_of_others(pod):
        return None
    affinity = pod.spec.affinity
    near = (affinity.pod_affinity if affinity else None) or PodAffinity()
    apart = (affinity.pod_anti_affinity if affinity else None) or PodAffinity()
    forbidden = tuple(
        (intern((_who(pod, term),)), term.topology_key)
        for term in apart.required_during_scheduling_ignored_during_execution
    )
    if not ours:
        return Relations(apart=forbidden) if forbidden else None
    required = near.required_during_scheduling_ignored_during_execution
    wanted = [(wish, 1) for wish in near.preferred_during_scheduling_ignored_during_execution]
    wanted += [(wish, -1) for wish in apart.preferred_during_scheduling_ignored_during_execution]
    spread = [(rule.when_unsatisfiable, _spread(pod, rule, intern)) for rule in pod.spec.topology_spread_constraints]
    found = Relations(
        near=intern(tuple(_who(pod, term) for term in required)) if required else None,
        near_keys=tuple(dict.fromkeys(term.topology_key for term in required)),
        apart=forbidden,
        spread=tuple(rule for when, rule in spread if when == HARD),
        wishes=tuple(
            Wish(intern((_who(pod, wish.pod_affinity_term),)), wish.pod_affinity_term.topology_key, sign * wish.weight)
            for wish, sign in wanted
        ),
        even=tuple(rule for when, rule in spread if when != HARD),
    )
    return found if found != NONE else None


def unknown(pod: Pod) -> Iterable[str]:
    """Yield the fields with values that this version does not know; they must never be ignored."""
    affinity = pod.spec.affinity
    for kind, rules in (
        ("podAffinity", affinity.pod_affinity if affinity else None),
        ("podAntiAffinity", affinity.pod_anti_affinity if affinity else None),
    ):
        for term in _terms(rules):
            if not (_is_known(term.label_selector) and _is_known(term.namespace_selector)):
                yield f"an operator in a selector of spec.affinity.{kind}"
    for rule in pod.spec.topology_spread_constraints:
        if rule.when_unsatisfiable not in (HARD, SOFT):
            yield f"whenUnsatisfiable {rule.when_unsatisfiable} of spec.topologySpreadConstraints"
        if {rule.node_affinity_policy, rule.node_taints_policy} - {None, HONOR, IGNORE}:
            yield "a node inclusion policy of spec.topologySpreadConstraints"
        if not _is_known(rule.label_selector):
            yield "an operator in a selector of spec.topologySpreadConstraints"


def _terms(rules: PodAffinity | None) -> list[PodAffinityTerm]:
    if rules is None:
        return []
    wishes = rules.preferred_during_scheduling_ignored_during_execution
    return [*rules.required_during_scheduling_ignored_during_execution, *(wish.pod_affinity_term for wish in wishes)]


def _is_known(selector: LabelSelector | None) -> bool:
    return selector is None or all(rule.operator in _OPERATORS for rule in selector.match_expressions)


def _who(pod: Pod, term: PodAffinityTerm) -> Who:
    """Return a term's pods. Without namespaces and namespaceSelector they are in the pod's own namespace."""
    own = not term.namespaces and term.namespace_selector is None
    return Who(
        _selector(pod, term.label_selector, term.match_label_keys, term.mismatch_label_keys),
        frozenset([pod.namespace] if own else term.namespaces),
        _from(term.namespace_selector),
    )


def _spread(pod: Pod, rule: TopologySpreadConstraint, intern: Intern) -> Spread:
    selector = _selector(pod, rule.label_selector, rule.match_label_keys)
    return Spread(
        peers=intern((Who(selector, frozenset([pod.namespace]), NOTHING),)),
        key=rule.topology_key,
        max_skew=rule.max_skew,
        min_domains=rule.min_domains or 1,
        honor_affinity=rule.node_affinity_policy != IGNORE,
        honor_taints=rule.node_taints_policy == HONOR,
    )


def _selector(
    pod: Pod, selector: LabelSelector | None, match: tuple[str, ...], mismatch: tuple[str, ...] = ()
) -> Selector:
    """Return the selector with these keys. The API server merges them too; repeating it changes nothing."""
    found = _from(selector)
    labels = pod.metadata.labels
    more = [Requirement(key, IN, (labels[key],)) for key in match if key in labels]
    more += [Requirement(key, NOT_IN, (labels[key],)) for key in mismatch if key in labels]
    more = [requirement for requirement in more if requirement not in found.requirements]
    return Selector((*found.requirements, *more)) if more and not found.nothing else found


def _from(selector: LabelSelector | None) -> Selector:
    """Return a parsed selector; an unreadable one, possible only for other schedulers' pods, selects every pod."""
    return from_label_selector(selector) if _is_known(selector) else EVERYTHING
