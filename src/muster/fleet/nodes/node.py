"""The model of a node that all parts of the fleet share. A part adds its own facts in a subclass."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from muster.api.quarantine import quarantined
from muster.api.trust import is_ignored
from muster.kube.objects.node import Node, Taint


class FleetNode(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a Node object that decisions use.

    Attributes:
        uid: UID of the Node object.
        boot_id: ID of the current boot; "" if the kubelet has not reported it.
        ready: whether its kubelet reports Ready.
        created_at: when the Node object was created, seconds since the epoch; 0 if unknown.
        labels: all labels.
        taints: all taints.
        cordoned: the value of `spec.unschedulable`.
        leaving: whether the Node object is being deleted.
        ignored: whether it has the label that opts out of health checks.
        quarantined: whether it has the quarantine taint, from any writer.
    """

    name: str
    uid: str = ""
    boot_id: str = ""
    ready: bool = True
    created_at: float = 0.0
    labels: Mapping[str, str] = MappingProxyType({})
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    leaving: bool = False
    ignored: bool = False
    quarantined: bool = False


N = TypeVar("N", bound=FleetNode)


def read(kind: type[N], node: Node, **own: Any) -> N:
    """Return the node as this subclass of FleetNode, with the additional facts `own`."""
    created, labels, info = node.metadata.creation_timestamp, node.metadata.labels, node.status.node_info
    return kind(
        name=node.name,
        uid=node.uid,
        boot_id=info.boot_id if info is not None else "",
        ready=node.ready,
        created_at=created.timestamp() if created is not None else 0.0,
        labels=labels,
        taints=node.spec.taints,
        cordoned=node.spec.unschedulable,
        leaving=node.metadata.deletion_timestamp is not None,
        ignored=is_ignored(labels),
        quarantined=quarantined(node),
        **own,
    )
