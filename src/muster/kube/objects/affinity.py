"""Node affinity, topology spread and tolerations of a pod."""

from __future__ import annotations

import msgspec

from muster.kube.objects.struct import KubeStruct


class LabelSelectorRequirement(KubeStruct):
    """`operator` is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(KubeStruct):
    """metav1.LabelSelector: all requirements must hold; an empty one matches every object."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class NodeSelectorRequirement(KubeStruct):
    """`operator` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(KubeStruct):
    """All requirements must hold; a term with none matches nothing."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(KubeStruct):
    """One of the terms must match."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(KubeStruct):
    """A preference about the node, with its weight (1-100)."""

    weight: int
    preference: NodeSelectorTerm


class NodeAffinity(KubeStruct):
    """Rules about the node."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


class PodAffinityTerm(KubeStruct):
    """Pods that share a value of the topology key with this one."""

    topology_key: str
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(KubeStruct):
    """A preference about other pods, with its weight (1-100)."""

    weight: int
    pod_affinity_term: PodAffinityTerm


class PodAffinity(KubeStruct):
    """Rules about other pods; also the shape of podAntiAffinity."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class Affinity(KubeStruct):
    """All affinity rules of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(KubeStruct):
    """Limits how unevenly pods spread; `when_unsatisfiable` is DoNotSchedule or ScheduleAnyway."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: str
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] = ()


class Toleration(KubeStruct):
    """The taints a pod tolerates; an empty key with Exists tolerates all taints, an empty effect every effect."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
