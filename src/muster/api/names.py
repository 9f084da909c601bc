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
"""On that Lease: the holder is in shadow mode. It plans and explains, and writes nothing else."""
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
"""`true` on balloons: pods of low priority that only keep a node from looking idle. They are preempted first."""
LABEL_BORROWED: Final = "muster.dev/borrowed"
"""`true` on borrowers: pods of low priority that may run on other teams' nodes. They are preempted after balloons."""
BORROWER_CLASS: Final = "muster-borrower"
"""PriorityClass of borrowers. The chart creates it if teams are configured."""
LABEL_TEAM: Final = "muster.dev/team"
"""The team of a node, a pod or a namespace; also the key of the nodes' taint. `teamKey` replaces this name."""
LABEL_USER: Final = "muster.dev/user"
"""The user of a TrainingJob or a pod, for predictions of run times. It gives no rights and is not checked."""
LABEL_SCHEDULER: Final = "muster.dev/scheduler"
"""On namespaces: with `muster`, the webhook sets `schedulerName: muster` in every new pod."""
LABEL_RACK: Final = "muster.dev/rack"
LABEL_POOL: Final = "muster.dev/pool"
"""On nodes for gangs alone; the value is the pool's name. These nodes have a taint with the same key as well."""
TAINT_POOL: Final = LABEL_POOL
TAINT_QUARANTINE: Final = "muster.dev/quarantine"
"""On nodes out of use until an operator has looked at them: `muster.dev/quarantine=true:NoSchedule`."""
QUARANTINE_VALUE: Final = "true"
"""The only value; the reasons are in the node's NodeRemediation."""
TAINT_PREFLIGHT: Final = "muster.dev/preflight"
"""On nodes that have not passed their tests: `muster.dev/preflight=pending:NoSchedule`.

A node without this taint is not trusted for that reason alone.
"""
PREFLIGHT_PENDING: Final = "pending"
TAINT_JOINING: Final = "muster.dev/joining"
"""On new nodes that are not open to pods yet: `muster.dev/joining=pending:NoSchedule`."""
LABEL_PREFLIGHT: Final = TAINT_PREFLIGHT
"""On pods that test their node: the level."""
ANNOTATION_TESTED_WITHIN: Final = "muster.dev/tested-within-hours"
"""On pods: the scheduler uses only nodes that passed their tests within this number of hours."""
LABEL_HEALTH: Final = "muster.dev/health"
"""`ignore` on nodes that Muster only observes: it takes no action on them."""
HEALTH_IGNORE: Final = "ignore"
HEALTH_CONFIG_MAP: Final = "muster-health"
"""The policy that maps findings to actions (docs/health.md). The settings of the agents' checks are in muster-agent."""
HEALTH_POLICY_KEY: Final = "policy.yaml"
LABEL_ZONE: Final = "topology.kubernetes.io/zone"

ANNOTATION_GANG_SIZE: Final = "muster.dev/gang-size"
ANNOTATION_GANG_UID: Final = "muster.dev/gang-uid"
ANNOTATION_ATTEMPT: Final = "muster.dev/attempt"
ANNOTATION_EXCLUDED: Final = "muster.dev/excluded-nodes"
"""On replacement pods: nodes to avoid, separated by commas. The pod's affinity excludes the same nodes."""
ANNOTATION_SCALE_UP: Final = "muster.dev/scale-up"
"""`approved`, on a TrainingJob or on all pods of a gang: autoscalers may add nodes for it."""
APPROVED: Final = "approved"
ANNOTATION_RESTARTABLE: Final = "muster.dev/restartable"
"""`true`, on all pods of a gang without a TrainingJob: it may be backfilled, and evicted when its nodes are needed."""
ANNOTATION_BACKFILLED: Final = "muster.dev/backfilled-for"
"""On a single pod that was backfilled: `namespace/name` of the gang for which its node is reserved. Set by its bind."""
ANNOTATION_SUBMITTER: Final = "muster.dev/submitter"
"""On TrainingJobs: the API server's name of the user who created it. The chart's policy refuses any other value, and
changes of it. The scheduler uses it in the order `fair`."""
ANNOTATION_REFUSAL: Final = "muster.dev/refusal"
"""On Events about a refused eviction: the API server's answer."""
ANNOTATION_REFUSED_UNTIL: Final = "muster.dev/refused-until"
"""On the same Events: the time until which the gang is not a candidate for preemption (RFC 3339)."""
ANNOTATION_TEAM_RECORD: Final = "muster.dev/team-record"
"""On nodes: who assigned the node to its team, since when and why (JSON).

If a team's label has no such annotation, another writer set it.
"""
MIRROR: Final = "kubernetes.io/config.mirror"
"""Kubernetes' annotation of a static pod's copy in the API."""
STAYS: Final = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
"""Cluster Autoscaler's annotation for a node that must stay, which operators know."""
ANNOTATION_WHOLE_NODE: Final = "muster.dev/whole-node"
"""On pods that take whole nodes: `any`, or `RESOURCE=COUNT` for nodes with exactly that many GPUs."""
ANNOTATION_PRIORITY: Final = "muster.dev/priority"
"""On pods: spec.priority of their job. (A pod's own priority comes only from a PriorityClass.)"""

WORKER_CONTAINER: Final = "worker"
SUPERVISOR_DIRECTORY: Final = "/muster/bin"
TOKEN_DIRECTORY: Final = "/var/run/secrets/muster.dev"
CACHE_DIRECTORY: Final = "/var/run/muster-cache"
"""On nodes and in pods: the folder of the socket of the node's data cache."""

NODES_PER_GANG_MAX: Final = 20_000
NAMESPACE_MAX: Final = 63
JOB_NAME_MAX: Final = 52
"""Longest name of a job. `{job}-{slot}-{attempt}` must fit into 63 characters, with 5 and 4 digits."""


def pod_name(job: str, slot: int, attempt: int) -> str:
    """The name of the pod that was created for `slot` at `attempt`."""
    return f"{job}-{slot}-{attempt}"


def remediation_name(node: str, node_uid: str) -> str:
    """The name of the NodeRemediation for this node. A recreated node of the same name gets another one."""
    return f"{node}-{node_uid[:8]}"


def placement_name(gang: str) -> str:
    """The name of a gang's Placement."""
    return gang
