"""What decide reads: pools as configured, as their providers see them, their nodes, and who waits for nodes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from muster.api.names import LABEL_TEAM
from muster.api.whole_node import WholeNode
from muster.fleet.scaling.states import Tracked
from muster.kube.affinity import NodeSelectorTerm, Toleration
from muster.kube.node import Taint

COMING_MAX = 1 << 30
"""Where nobody bounds how many nodes may be on their way."""
POLL_S = 15.0
"""How often a provider is asked where the pool does not say: one or two requests."""
Amounts = Mapping[str, int]
"""Resources as integers: cpu in millicores, everything else in units."""


class Template(msgspec.Struct, frozen=True):
    """What a new node of a pool will be like: nobody can ask a node that does not exist.

    Attributes:
        labels: it carries these, and perhaps more.
        taints: it carries these for good; others on a new node mean that it is not ready for pods yet.
        capacity: what pods may use of it, DaemonSets' share taken off.
        assigned: keys of labels and taints that it gets after it has joined, as teams' are: what pods ask about them is
            not looked at, and such a taint does not mean that the node is not ready for pods.
    """

    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    capacity: Amounts
    assigned: frozenset[str] = frozenset({LABEL_TEAM})


class PoolSpec(msgspec.Struct, frozen=True):
    """A pool as configured.

    Attributes:
        name: unique among pools.
        provider: which provider holds it, such as `aws`.
        group: what the provider calls it.
        min: never fewer nodes by our doing.
        max: never more.
        price: of a node and hour, in any currency: the cheapest pool that serves a gang goes first.
        template: what its nodes are like.
        options: what else the provider asks for, such as `region`.
        idle_s: a node idle for so long is given back.
        cool_down_s: nothing is given back for so long after the pool grew.
        join_timeout_s: from the request until the node is Ready; then it is replaced.
        poll_s: the provider is asked so often at least.
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
    """Why a provider does not do what it is asked. Values are reasons of conditions and metrics: never rename one."""

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
        id: the provider's name for it, unique in the pool; a part of its Node's providerID where it is not the name.
        terminating: on its way out, whoever asked for that.
        node_name: name of its Node, where the provider knows it.
    """

    id: str
    terminating: bool = False
    node_name: str = ""


class Failure(msgspec.Struct, frozen=True):
    """The newest launch that failed at the provider, in its words."""

    fault: Fault
    message: str
    at: float


class Group(msgspec.Struct, frozen=True):
    """A pool as its provider sees it, now.

    Attributes:
        size: how many instances it is asked to keep.
        instances: those it has, terminating ones too.
        floor, ceiling: its own bounds on `size`, beside the pool's.
        failure: the newest failed launch that the provider knows of.
        deletes: nodes are given back through us; false where an autoscaler of its own does that.
    """

    size: int
    instances: tuple[Instance, ...] = ()
    floor: int = 0
    ceiling: int = 1 << 30
    failure: Failure | None = None
    deletes: bool = True


class NodeView(msgspec.Struct, frozen=True):
    """A Node object, as far as scaling looks.

    Attributes:
        instance: id of its instance in `pool`; its own name where the provider names none.
        pool: the pool it is in.
        created_at: when the object was made.
        occupied: who needs it: a pod that is not a DaemonSet's or static, or a slot kept there; "" for nobody. Balloons
            are such pods: where one is, somebody wants the node kept.
        keeps_away: cordon or taint, not of its template, that keeps pods away; "" for none. Ours is not one.
        quarantined: it serves nobody until somebody has looked at it.
        draining: the cordon is ours.
        deleting: its deletion was asked for by us.
        abandoned: it has our record, and somebody else took the cordon away.
        may_go: nobody has said that it must stay (annotation of Cluster Autoscaler's).
    """

    name: str
    uid: str
    pool: str
    instance: str
    ready: bool
    created_at: float = 0.0
    occupied: str = ""
    keeps_away: str = ""
    quarantined: bool = False
    draining: bool = False
    deleting: bool = False
    abandoned: bool = False
    may_go: bool = True


class Members(msgspec.Struct, frozen=True):
    """Pods of a gang that ask for the same, for which there is no room.

    Attributes:
        count: how many.
        request: what each takes, `pods: 1` included.
        alone: no two members of its gang share a node.
        whole: each takes a node of so many GPUs for itself; None where they share nodes.
    """

    count: int
    request: Amounts
    selector: Mapping[str, str] = MappingProxyType({})
    terms: tuple[NodeSelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    alone: bool = False
    whole: WholeNode | None = None


class GangDemand(msgspec.Struct, frozen=True):
    """A gang that is whole but for nodes.

    Attributes:
        key: which gang.
        name: `namespace/name`, for people.
        members: for whom there is no room.
        since: since when it has been known to wait; seconds since the epoch.
        approved: somebody has said that nodes may be bought for it.
    """

    key: str
    name: str
    members: tuple[Members, ...]
    since: float = 0.0
    approved: bool = True


class PoolMemory(msgspec.Struct, frozen=True):
    """What is remembered of a pool. Times are seconds since the epoch.

    Attributes:
        asked: the size asked for last; -1 before the first time.
        asked_at: when.
        lowered: that was less than before; a provider that still shows more lags behind.
        owed_since: since when it has fewer instances than asked without getting any.
        had: instances it had at the last look.
        grown_at: when it was last asked for more.
        fault: why it is left alone until `blocked_until`; None where it is not.
        failures: how many times in a row.
        message: the same in the provider's words.
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
    """Everything decide reads.

    Attributes:
        pools: by price, then name.
        groups: by pool; a pool whose provider could not be asked lately has none, and is left alone.
        nodes: the Node objects of pools.
        demands: in the order of the queue.
        tracked: node states of the last plan, by `pool/instance`.
        memory: of pools, from the last plan.
        faults: errors of requests since the last plan, by pool: fault, message, seconds to wait (0: as usual).
        coming_max: how many nodes may be on their way at once, as the pace of joins allows.
    """

    pools: tuple[PoolSpec, ...]
    groups: Mapping[str, Group]
    nodes: tuple[NodeView, ...] = ()
    demands: tuple[GangDemand, ...] = ()
    tracked: Mapping[str, Tracked] = MappingProxyType({})
    memory: Mapping[str, PoolMemory] = MappingProxyType({})
    faults: Mapping[str, tuple[Fault, str, float]] = MappingProxyType({})
    coming_max: int = COMING_MAX
