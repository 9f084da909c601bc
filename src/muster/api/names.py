"""Names that several parts of Muster agree on: labels, annotations, object names, limits."""

from __future__ import annotations

from typing import Final

GROUP: Final = "muster.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

SYSTEM_NAMESPACE: Final = "muster-system"
SCHEDULER_NAME: Final = "muster"
CONTROLLER_LEASE: Final = "muster-controller"
ANNOTATION_SHADOW: Final = "muster.dev/shadow"
"""On that Lease: its holder plans and explains, and writes nothing."""
TOKEN_AUDIENCE: Final = "muster.dev"
TLS_SECRET: Final = "muster-controller-tls"
CLUSTER_SECRET: Final = "muster-cluster-secret"
TEAMS_CONFIG_MAP: Final = "muster-teams"
TEAMS_CONFIG_KEY: Final = "teams.yaml"

LABEL_GANG: Final = "muster.dev/gang"
LABEL_SLOT: Final = "muster.dev/slot"
LABEL_MANAGED_BY: Final = "muster.dev/managed-by"
MANAGED_BY: Final = "muster"
LABEL_BALLOON: Final = "muster.dev/balloon"
"""`true` on pods that only keep a node from looking idle: of lower priority, they leave first."""
LABEL_BORROWED: Final = "muster.dev/borrowed"
"""`true` on pods that run on nodes another team owns: of lower priority, they leave after balloons."""
BORROWER_CLASS: Final = "muster-borrower"
"""PriorityClass of borrowers, which the chart makes where there are teams."""
LABEL_TEAM: Final = "muster.dev/team"
"""The team that owns a node, that a pod or a namespace belongs to; key of the taint as well. `teamKey` changes it."""
LABEL_SCHEDULER: Final = "muster.dev/scheduler"
"""On namespaces: `muster` where their pods are for Muster's scheduler; its webhook then says so in each."""
LABEL_RACK: Final = "muster.dev/rack"
LABEL_POOL: Final = "muster.dev/pool"
"""On nodes that are for gangs alone; its value is the pool's name. They carry the taint of the same key as well."""
TAINT_POOL: Final = LABEL_POOL
TAINT_QUARANTINE: Final = "muster.dev/quarantine"
"""On nodes out of use until an operator has looked at them: `muster.dev/quarantine=true:NoSchedule`."""
QUARANTINE_VALUE: Final = "true"
"""The one value: reasons live in the node's NodeRemediation."""
TAINT_PREFLIGHT: Final = "muster.dev/preflight"
"""On nodes that have not passed their tests: `muster.dev/preflight=pending:NoSchedule`.

A node without it is not trusted for that.
"""
PREFLIGHT_PENDING: Final = "pending"
LABEL_PREFLIGHT: Final = TAINT_PREFLIGHT
"""On pods that test their node: the level."""
ANNOTATION_TESTED_WITHIN: Final = "muster.dev/tested-within-hours"
"""On pods: their nodes have to have passed their tests within so many hours."""
LABEL_HEALTH: Final = "muster.dev/health"
"""`ignore` on nodes that are not under Muster's care: they are observed, and no action is taken."""
HEALTH_IGNORE: Final = "ignore"
HEALTH_CONFIG_MAP: Final = "muster-health"
"""The policy that maps findings to actions (docs/health.md). The settings of the agents' checks are in muster-agent."""
HEALTH_POLICY_KEY: Final = "policy.yaml"
LABEL_ZONE: Final = "topology.kubernetes.io/zone"

ANNOTATION_GANG_SIZE: Final = "muster.dev/gang-size"
ANNOTATION_GANG_UID: Final = "muster.dev/gang-uid"
ANNOTATION_ATTEMPT: Final = "muster.dev/attempt"
ANNOTATION_EXCLUDED: Final = "muster.dev/excluded-nodes"
"""Nodes a replacement keeps away from, comma-separated; its affinity says the same to the scheduler."""
ANNOTATION_SCALE_UP: Final = "muster.dev/scale-up"
"""`approved`, on a TrainingJob or on all pods of a gang: autoscalers may add nodes for it."""
APPROVED: Final = "approved"
ANNOTATION_REFUSAL: Final = "muster.dev/refusal"
"""On Events about a refused eviction: the API server's answer."""
ANNOTATION_REFUSED_UNTIL: Final = "muster.dev/refused-until"
"""On the same Events: until when the gang is not a candidate (RFC 3339)."""
ANNOTATION_TEAM_RECORD: Final = "muster.dev/team-record"
"""On nodes: who assigned the node to its team, since when and why (JSON).

A label without it was set by another writer.
"""
MIRROR: Final = "kubernetes.io/config.mirror"
"""Kubernetes' annotation of a static pod's copy in the API."""
STAYS: Final = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
"""Cluster Autoscaler's annotation for a node that must stay, which operators know."""
ANNOTATION_WHOLE_NODE: Final = "muster.dev/whole-node"
"""On pods of a TrainingJob that has its nodes to itself: `any`, or `RESOURCE=COUNT`: only nodes of that GPU count."""
ANNOTATION_PRIORITY: Final = "muster.dev/priority"
"""spec.priority of the job: the API server sets a pod's own priority only from a PriorityClass."""

WORKER_CONTAINER: Final = "worker"
SUPERVISOR_DIRECTORY: Final = "/muster/bin"
TOKEN_DIRECTORY: Final = "/var/run/secrets/muster.dev"

NODES_PER_GANG_MAX: Final = 20_000
NAMESPACE_MAX: Final = 63
JOB_NAME_MAX: Final = 52
"""A pod is `{job}-{slot}-{attempt}` and its host name a DNS label (63): 5 digits of slot and 4 of attempt fit."""


def pod_name(job: str, slot: int, attempt: int) -> str:
    """The name of the pod that holds `slot` and was made at `attempt`."""
    return f"{job}-{slot}-{attempt}"


def remediation_name(node: str, node_uid: str) -> str:
    """The name of a node session's NodeRemediation: another node of the same name has another one."""
    return f"{node}-{node_uid[:8]}"


def placement_name(gang: str) -> str:
    """The name of a gang's Placement."""
    return gang
