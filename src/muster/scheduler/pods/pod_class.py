"""Pod classes: pods with the same requirements. Feasibility is computed once per class, however many pods it has."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec

from muster.api.names import ANNOTATION_TESTED_WITHIN, ANNOTATION_WHOLE_NODE, LABEL_GANG, LABEL_PREFLIGHT
from muster.api.trust import tested_within_h
from muster.api.validate import NO_CLAIMS
from muster.api.whole_node import WholeNode, whole_node
from muster.kube.objects.affinity import NodeSelectorTerm, PreferredSchedulingTerm, Toleration
from muster.kube.objects.pod import Pod, PodSpec
from muster.kube.objects.resources import pod_request
from muster.scheduler.pods.peers import NO_PEERS, PeerTable
from muster.scheduler.pods.relations import Peers, Relations, Term, asks_of_others, relations, unknown
from muster.scheduler.pods.resources import WHOLE, WHOLE_PARTS
from muster.scheduler.pods.volumes import ClaimNeeds

HostPort = tuple[str, str, int]
"""(host IP, protocol, port); an empty IP means all addresses."""


@dataclass(frozen=True, slots=True, eq=False)
class PodClass:
    """Requirements that the pods of a class share. Compared by identity: `ClassTable` interns them.

    Attributes:
        number: a small integer, in order of first appearance.
        request: resources as integers, including `pods: 1` and the share of a whole node.
        selector: nodeSelector.
        terms: terms of required node affinity; at least one must match; None without it.
        volume_terms: (claim, terms) of each bound volume that is tied to nodes; each needs a matching term.
        label_keys: node labels that the constraints read.
        alone: the pod is a slot of a gang that takes whole nodes: at most one slot of a gang per node.
        refusals: constraints that this scheduler does not support, each a sentence; such a pod is never placed.
        relations: rules about other pods; None without rules.
        matches: the sets of pods, known from rules of pods, that contain pods of the class.
        tests: the pod tests its node.
        tested_within_h: its nodes must have been tested within this many hours; 0 without this requirement.
        whole: its job uses whole nodes with this many GPUs; None if it shares nodes.
    """

    number: int
    request: dict[str, int]
    ports: tuple[HostPort, ...]
    selector: dict[str, str]
    terms: tuple[NodeSelectorTerm, ...] | None
    preferred: tuple[PreferredSchedulingTerm, ...]
    tolerations: tuple[Toleration, ...]
    volume_terms: tuple[tuple[str, tuple[NodeSelectorTerm, ...]], ...]
    label_keys: frozenset[str]
    alone: bool
    refusals: tuple[str, ...]
    relations: Relations | None = None
    matches: frozenset[Peers] = NO_PEERS
    tests: bool = False
    tested_within_h: int = 0
    whole: WholeNode | None = None
    subjects: tuple[Peers | Term, ...] = dataclasses.field(init=False, default=())
    """What domains count for a pod of the class: the sets it is in, and its anti-affinity terms."""

    def __post_init__(self) -> None:
        """Collect `subjects`."""
        apart = self.relations.apart if self.relations is not None else ()
        if self.matches or apart:
            sets = sorted(self.matches, key=lambda peers: peers.number)
            object.__setattr__(self, "subjects", (*sets, *dict.fromkeys(apart)))


class ClassTable:
    """Interned pod classes by requirements; `trusting` is Muster's own namespace if nodes need tests."""

    def __init__(self, peers: PeerTable | None = None, trusting: str | None = None) -> None:
        self.label_keys: frozenset[str] = frozenset()
        self.ages: frozenset[int] = frozenset()
        self.by_domain: dict[Term, None] = {}
        """Sets of pods that new classes count by domain; the caller removes those that it counts."""
        self._trusting = trusting
        self.peers = peers if peers is not None else PeerTable()
        self._classes: dict[tuple[bytes, Relations | None], PodClass] = {}
        self._variants: dict[tuple[PodClass, frozenset[Peers]], PodClass] = {}
        self._base: dict[PodClass, PodClass] = {}
        self._numbers = itertools.count()
        self._encoder = msgspec.json.Encoder(order="deterministic")

    def of(self, pod: Pod, claims: ClaimNeeds = (), *, ours: bool = True) -> PodClass:
        """Return the class of the pod; `claims` are the node constraints of its bound volumes."""
        return self.variant(self._of_spec(pod, claims, ours=ours), self.peers.of(pod.uid))

    def variant(self, cls: PodClass, matches: frozenset[Peers]) -> PodClass:
        """Return the class of the same pods with other sets of pods that contain them."""
        if cls.matches == matches:
            return cls
        base = self._base.get(cls, cls)
        if not matches:
            return base
        found = self._variants.get((base, matches))
        if found is None:
            found = self._variants[base, matches] = dataclasses.replace(
                base, number=next(self._numbers), matches=matches
            )
            self._base[found] = base
        return found

    def forget(self, used: Collection[PodClass]) -> Collection[Peers]:
        """Drop unused classes that have rules; return the sets of pods that no rule selects any more."""
        bases = {self._base.get(cls, cls) for cls in used}
        self._classes = {key: cls for key, cls in self._classes.items() if cls.relations is None or cls in bases}
        self._variants = {key: cls for key, cls in self._variants.items() if cls in used}
        self._base = {cls: base for cls, base in self._base.items() if cls in used}
        return self.peers.keep({peers for cls in bases if cls.relations is not None for peers in cls.relations.about})

    def _of_spec(self, pod: Pod, claims: ClaimNeeds, *, ours: bool) -> PodClass:
        spec = pod.spec
        extra = (spec.resources, _unknown_group(spec), spec.workload_ref is None)
        asked = relations(pod, self.peers.intern, ours=ours) if asks_of_others(pod) else None
        tests = self._trusting is not None and is_test(pod, self._trusting)
        spec_key = self._encoder.encode(
            (
                [(c.resources, c.ports, c.restart_policy) for c in spec.init_containers],
                [(c.resources, c.ports) for c in spec.containers],
                spec.node_selector,
                spec.affinity,
                spec.tolerations,
                spec.overhead,
                spec.host_network,
                spec.topology_spread_constraints,
                spec.resource_claims,
                extra,
                claims,
                LABEL_GANG in pod.metadata.labels,
                pod.metadata.annotations.get(ANNOTATION_TESTED_WITHIN),
                pod.metadata.annotations.get(ANNOTATION_WHOLE_NODE),
                ours,
                tests,
            )
        )
        key = (spec_key, asked)
        found = self._classes.get(key)
        if found is None:
            found = make_class(next(self._numbers), pod, claims, asked, ours=ours)
            if tests or found.tested_within_h:
                found = self._about_tests(found, tests=tests)
            self._classes[key] = found
            self.label_keys |= found.label_keys
            if ours and asked is not None:
                self.by_domain.update(dict.fromkeys(asked.by_domain))
        return found

    def _about_tests(self, cls: PodClass, *, tests: bool) -> PodClass:
        if self._trusting is None:
            why = f"it asks for nodes tested within {cls.tested_within_h} h, and preflight is not required here"
            return dataclasses.replace(cls, tested_within_h=0, refusals=(*cls.refusals, why))
        self.ages |= {cls.tested_within_h} - {0}
        return dataclasses.replace(cls, tests=tests)


def make_class(
    number: int, pod: Pod, claims: ClaimNeeds = (), asked: Relations | None = None, *, ours: bool = True
) -> PodClass:
    """Build the class from a pod's constraints; `ours`: Muster places it. Raises ValueError for a bad quantity."""
    spec = pod.spec
    in_slot = LABEL_GANG in pod.metadata.labels
    whole = whole_node(pod.metadata.annotations) if ours and in_slot else None
    request = pod_request(spec)
    if ours:
        request[WHOLE] = WHOLE_PARTS if whole is not None else 1
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
    terms = required.node_selector_terms if required else None
    return PodClass(
        number=number,
        request=request,
        ports=tuple(_host_ports(pod)),
        selector=spec.node_selector,
        terms=terms,
        preferred=preferred,
        tolerations=spec.tolerations,
        volume_terms=claims,
        label_keys=frozenset(
            [
                *spec.node_selector,
                *_keys(terms or ()),
                *_keys(wish.preference for wish in preferred),
                *(key for _, volume_terms in claims for key in _keys(volume_terms)),
            ]
        ),
        alone=in_slot,
        refusals=tuple(_refusals(pod)),
        relations=asked,
        tested_within_h=_within_h(pod),
        whole=whole,
    )


def is_test(pod: Pod, namespace: str) -> bool:
    """Return whether the pod tests its node; the label counts only in Muster's own namespace."""
    return LABEL_PREFLIGHT in pod.metadata.labels and pod.namespace == namespace


def _keys(terms: Iterable[NodeSelectorTerm]) -> list[str]:
    return [requirement.key for term in terms for requirement in term.match_expressions]


def _host_ports(pod: Pod) -> Iterable[HostPort]:
    """Yield the pod's host ports. With hostNetwork every container port is one (API server defaulting)."""
    for container in pod.spec.containers:
        for port in container.ports:
            number = port.host_port or (port.container_port if pod.spec.host_network else 0)
            if number:
                yield ("" if port.host_ip in ("", "0.0.0.0", "::") else port.host_ip, port.protocol or "TCP", number)


def _within_h(pod: Pod) -> int:
    try:
        return tested_within_h(pod.metadata.annotations)
    except ValueError:
        return 0  # such a pod is refused


def _refusals(pod: Pod) -> Iterable[str]:
    """Yield every constraint that this scheduler does not support."""
    spec = pod.spec
    try:
        tested_within_h(pod.metadata.annotations)
    except ValueError as error:
        yield str(error)
    affinity = spec.affinity
    if affinity is not None:
        nodes = affinity.node_affinity
        wishes = nodes.preferred_during_scheduling_ignored_during_execution if nodes else ()
        if any(wish.preference.match_fields for wish in wishes):
            yield _unsupported("spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution.matchFields")
    for field in dict.fromkeys(unknown(pod)):
        yield _unsupported(field)
    if spec.resource_claims:
        yield f"spec.resourceClaims {NO_CLAIMS}"
    if _unknown_group(spec):
        yield _unsupported("spec.schedulingGroup")
    if spec.workload_ref is not None:
        yield _unsupported("spec.workloadRef")


def _unknown_group(spec: PodSpec) -> bool:
    """Return whether the pod is in a kind of scheduling group that is newer than podGroupName."""
    return spec.scheduling_group is not None and not spec.scheduling_group.get("podGroupName")


def _unsupported(field: str) -> str:
    return f"{field} is not supported yet by schedulerName muster"
