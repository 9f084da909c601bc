"""The input of decide: pools as configured and as their providers show them, their nodes, and the demand of gangs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from muster.api.names import LABEL_TEAM
from muster.api.whole_node import WholeNode
from muster.fleet.nodes.node import FleetNode
from muster.fleet.scaling.states import Tracked
from muster.kube.objects.affinity import NodeSelectorTerm, Toleration
from muster.kube.objects.node import Taint

COMING_MAX = 1 << 30
"""No limit on nodes that are on their way."""
POLL_S = 15.0
"""How often a provider is polled by default; a poll is one or two requests."""
Amounts = Mapping[str, int]
"""Resources as integers: CPU in millicores, everything else in units."""


class Template(msgspec.Struct, frozen=True):
    """Describes future nodes of a pool, because a node that does not exist cannot be inspected.

    Attributes:
        labels: the labels of each node; it may have more.
        taints: its permanent taints. Other taints on a new node mean that it is not ready for pods yet.
        capacity: what pods may use of it, without the share of DaemonSets.
        assigned: keys of labels and taints that a node gets after it has joined, such as its team. What pods require of
            these keys is ignored, and such a taint does not mean that the node is not ready for pods.
    """

    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    capacity: Amounts
    assigned: frozenset[str] = frozenset({LABEL_TEAM})


class PoolSpec(msgspec.Struct, frozen=True):
    """A pool as configured.

    Attributes:
        name: unique among pools.
        provider: the name of its provider, such as `aws`.
        group: the provider's name for the pool.
        min: scaling never removes nodes below this number.
        max: scaling never adds nodes above this number.
        price: of one node per hour, in any currency: the cheapest pool that serves a gang is used first.
        template: describes its nodes.
        options: more settings of the provider, such as `region`.
        idle_s: a node that is idle for this long is deleted.
        cool_down_s: no node is deleted for this long after the pool grew.
        join_timeout_s: from the request until the node is Ready. After this, it is replaced.
        poll_s: the provider is polled at least this often.
    """

    name: str
    provider: str
    group: str
    min: int
    max: int
    price: float
    template: Template
    options: Mapping[str, str] = MappingProxyType({})
    idle_s: float = 600.0
    cool_down_s: float = 300.0
    join_timeout_s: float = 900.0
    poll_s: float = POLL_S


class Fault(StrEnum):
    """The kinds of provider failures. Values are reasons of conditions and metrics: never rename one."""

    NO_CAPACITY = "NoCapacity"
    QUOTA = "QuotaExceeded"
    THROTTLED = "Throttled"
    TIMED_OUT = "TimedOut"
    DENIED = "Denied"
    MISCONFIGURED = "Misconfigured"
    UNAVAILABLE = "Unavailable"
    FEWER = "FewerThanAsked"
    NEVER_JOINED = "NeverJoined"


class Instance(msgspec.Struct, frozen=True):
    """A machine at the provider.

    Attributes:
        id: the provider's ID, unique in the pool; if it is not the Node's name, it is part of the Node's providerID.
        terminating: it is being deleted, by anyone.
        node_name: name of its Node, if the provider knows it.
    """

    id: str
    terminating: bool = False
    node_name: str = ""


class Failure(msgspec.Struct, frozen=True):
    """The newest launch that failed at the provider, with the provider's message."""

    fault: Fault
    message: str
    at: float


class Group(msgspec.Struct, frozen=True):
    """A pool as its provider shows it now.

    Attributes:
        size: the requested number of instances.
        instances: the existing instances, including terminating ones.
        floor, ceiling: the provider's limits on `size`, in addition to the pool's.
        failure: the newest failed launch that the provider knows of.
        deletes: scaling deletes its nodes; false if another autoscaler does.
    """

    size: int
    instances: tuple[Instance, ...] = ()
    floor: int = 0
    ceiling: int = 1 << 30
    failure: Failure | None = None
    deletes: bool = True


class ScalingNode(FleetNode, frozen=True, kw_only=True):
    """A Node object in the form that scaling uses.

    Attributes:
        instance: ID of its instance in `pool`; the node's name if the provider gives no ID.
        pool: its pool.
        occupied: who needs it: a pod (not a DaemonSet's or static one) or a slot; "" if it is not needed. Balloons
            count as such pods, because they keep a node on purpose.
        keeps_away: the cordon or taint, not from its template, that keeps pods away; "" without one. Our cordon does
            not count.
        draining: the cordon is ours.
        deleting: we requested its deletion.
        abandoned: it has our record, but someone else removed the cordon.
        may_go: it does not have Cluster Autoscaler's annotation for nodes that must stay.
    """

    pool: str
    instance: str
    occupied: str = ""
    keeps_away: str = ""
    draining: bool = False
    deleting: bool = False
    abandoned: bool = False
    may_go: bool = True


class Members(msgspec.Struct, frozen=True):
    """Pods of a gang with the same requirements that do not fit on existing nodes.

    Attributes:
        count: the number of pods.
        request: the resources of each, including `pods: 1`.
        alone: two members of the gang never share a node.
        whole: each takes a whole node with this number of GPUs; None if nodes may be shared.
    """

    count: int
    request: Amounts
    selector: Mapping[str, str] = MappingProxyType({})
    terms: tuple[NodeSelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    alone: bool = False
    whole: WholeNode | None = None


class GangDemand(msgspec.Struct, frozen=True):
    """A gang that lacks only nodes.

    Attributes:
        key: the gang's key.
        name: `namespace/name`, for people.
        members: the pods that do not fit.
        since: since when it is known to wait; seconds since the epoch.
        approved: a user has approved more nodes for it.
    """

    key: str
    name: str
    members: tuple[Members, ...]
    since: float = 0.0
    approved: bool = True


class PoolMemory(msgspec.Struct, frozen=True):
    """The memory of a pool between plans. Times are in seconds since the epoch.

    Attributes:
        asked: the last requested size; -1 before the first time.
        asked_at: when it was requested.
        lowered: it was a reduction; a provider that still shows a larger size has not caught up.
        owed_since: since when instances are missing without a new one.
        had: number of instances at the last plan.
        grown_at: when the size was last raised.
        fault: why requests are paused until `blocked_until`; None if they are not.
        failures: the number of failures in a row.
        message: the provider's message.
        failure_at: time of the newest `Group.failure` that was counted.
    """

    asked: int = -1
    asked_at: float = 0.0
    lowered: bool = False
    owed_since: float = 0.0
    had: int = 0
    grown_at: float = float("-inf")
    fault: Fault | None = None
    blocked_until: float = 0.0
    failures: int = 0
    message: str = ""
    failure_at: float = 0.0


class View(msgspec.Struct, frozen=True):
    """The input of decide.

    Attributes:
        pools: by price, then name.
        groups: by pool. A pool whose provider did not answer is missing here and is not changed.
        nodes: the Node objects of pools.
        demands: in the order of the queue.
        tracked: node states of the last plan, by `pool/instance`.
        memory: of pools, from the last plan.
        faults: errors of requests since the last plan, by pool: fault, message, seconds to wait (0: the default).
        coming_max: how many nodes may be on their way at once, by the pace of joins.
    """

    pools: tuple[PoolSpec, ...]
    groups: Mapping[str, Group]
    nodes: tuple[ScalingNode, ...] = ()
    demands: tuple[GangDemand, ...] = ()
    tracked: Mapping[str, Tracked] = MappingProxyType({})
    memory: Mapping[str, PoolMemory] = MappingProxyType({})
    faults: Mapping[str, tuple[Fault, str, float]] = MappingProxyType({})
    coming_max: int = COMING_MAX
