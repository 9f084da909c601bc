"""The states of a pool's nodes, and the transitions between them.

- Requested: the pool's size is larger than its number of instances.
- Launching: the provider has created an instance.
- Joining: its kubelet has created a Node object.
- Settling: the node is Ready and has lost the taints that keep pods away from a new node.
- Idle or InUse: from then on, pods and slots decide.
- Draining: it was idle longer than its pool allows, and is cordoned. It is checked again once all schedulers know that.
- Deleting: its deletion was requested from the provider.
- Overdue: it has not joined in time. It is deleted, and another one is requested if it is still needed.

    Requested -> Launching -> Joining -> Settling -> Idle <-> InUse
     (or           |            |                     |         |
     cancelled)    +- Overdue --+                     |         | a pod or slot came: uncordoned
                        |                             v         |
                        +---------> Deleting <---- Draining ----+

Held (someone else cordoned or tainted it, or it is in quarantine) and Unready (it stopped being Ready) may follow every
state with a Node object. Scaling does not decide about such nodes: they are not counted as coming, and never deleted.

Each plan computes the state again from the provider and the API server; only its start time is remembered. So a
new leader finds the same states: our cordon is an annotation on the node.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class NodeState(StrEnum):
    """The state of a node in a pool. Values are in metrics and in the status: never rename one."""

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
"""States of nodes that will serve gangs and that the scheduler does not know yet."""


class Tracked(msgspec.Struct, frozen=True):
    """The memory of a node between plans. Times are in seconds since the epoch.

    Attributes:
        state: its state in the last plan.
        since: when it entered that state.
        first_seen: when its instance was first seen.
        joined: its Node object has been Ready.
    """

    state: NodeState
    since: float
    first_seen: float
    joined: bool = False
