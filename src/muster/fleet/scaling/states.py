"""One named state for every node of a pool, and how one becomes another.

Theory of operation. A node's life begins as a number: the pool's size is one more than the instances it has, so one is
Requested. The provider makes an instance (Launching), its kubelet makes a Node object (Joining), which says Ready and
loses the taints that keep pods away from a new node (Settling). From then on pods and slots decide: Idle or InUse. What
stays Idle beyond its pool's window is cordoned (Draining), looked at once more after everybody must have heard of the
cordon, and deleted at the provider (Deleting). An instance that has not joined in time is Overdue: it is deleted, and
another one is requested while somebody needs it.

    Requested -> Launching -> Joining -> Settling -> Idle <-> InUse
     (or           |            |                     |         |
     cancelled)    +- Overdue --+                     |         | a pod or slot came: uncordoned
                        |                             v         |
                        +---------> Deleting <---- Draining ----+

Held (somebody else cordoned or tainted it, or it is in quarantine) and Unready (it stopped being Ready) are side tracks
of every state with a Node object: what happens there is not ours to decide, so such nodes are neither counted as coming
nor ever deleted.

The state is worked out anew from what the provider and the API server say; what is remembered is only since when. So a
new leader finds every node where the last one left it: a cordon of ours is an annotation on the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec


class NodeState(StrEnum):
    """Where a node of a pool is in its life. Values are in metrics and in the status: never rename one."""

    REQUESTED = "Requested"
    LAUNCHING = "Launching"
    JOINING = "Joining"
    SETTLING = "Settling"
    IDLE = "Idle"
    IN_USE = "InUse"
    HELD = "Held"
    UNREADY = "Unready"
    OVERDUE = "Overdue"
    DRAINING = "Draining"
    DELETING = "Deleting"


COMING = frozenset({NodeState.REQUESTED, NodeState.LAUNCHING, NodeState.JOINING, NodeState.SETTLING})
"""Nodes that will serve whoever waits, and that the scheduler does not know yet."""

_LIVE = frozenset(
    {NodeState.SETTLING, NodeState.IDLE, NodeState.IN_USE, NodeState.HELD, NodeState.UNREADY, NodeState.DRAINING}
)

TRANSITIONS: Mapping[NodeState, frozenset[NodeState]] = MappingProxyType(
    {
        NodeState.REQUESTED: frozenset({NodeState.LAUNCHING}),
        NodeState.LAUNCHING: _LIVE | {NodeState.JOINING, NodeState.OVERDUE, NodeState.DELETING},
        NodeState.JOINING: _LIVE | {NodeState.LAUNCHING, NodeState.OVERDUE, NodeState.DELETING},
        # One that comes after all is as good as any, until its deletion was asked for.
        NodeState.OVERDUE: _LIVE | {NodeState.LAUNCHING, NodeState.JOINING, NodeState.DELETING},
        **{state: _LIVE | {NodeState.DELETING} for state in _LIVE},
        # A deletion that the provider forgot is asked for again.
        NodeState.DELETING: _LIVE | {NodeState.LAUNCHING, NodeState.JOINING, NodeState.OVERDUE},
    }
)
"""What may follow what, beside staying and being gone."""


class Tracked(msgspec.Struct, frozen=True):
    """What is remembered of a node between two looks. Times are seconds since the epoch.

    Attributes:
        state: its state at the last look.
        since: when it came to that state.
        first_seen: when its instance was first seen.
        joined: its Node object has said Ready.
    """

    state: NodeState
    since: float
    first_seen: float
    joined: bool = False
