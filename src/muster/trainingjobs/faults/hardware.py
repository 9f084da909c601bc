"""Recognizes conditions and Events of a node that report broken hardware."""

from __future__ import annotations

import re
from typing import Final

from muster.kube.objects.core import Event
from muster.kube.objects.node import Node
from muster.trainingjobs.snapshot import HardwareEvidence

CONDITIONS: Final = re.compile(
    r"muster\.dev/.*(Unhealthy|Fault|Error)|Gpu(Unhealthy|Xid|Error).*|(IB|Nic|NvLink)Unhealthy"
)
"""Types of node conditions that report broken hardware while they are True."""
REASONS: Final = re.compile(
    r"(Gpu)?Xid.*|Gpu(Unhealthy|FellOffBus|EccError)|EccUncorrectable.*|NvLink(Error|Down)|(IB|Nic)(LinkDown|Unhealthy)"
)
"""Reasons of Warning Events that report broken hardware of a node."""


def from_node(node: Node) -> HardwareEvidence | None:
    """Returns hardware evidence from the node's conditions."""
    for condition in node.status.conditions:
        if condition.status == "True" and CONDITIONS.fullmatch(condition.type):
            moment = condition.last_transition_time or condition.last_heartbeat_time
            text = f"{condition.type}: {condition.message or condition.reason}"
            return HardwareEvidence(node.name, moment.timestamp() if moment is not None else 0.0, text)
    return None


def from_event(event: Event) -> HardwareEvidence | None:
    """Returns hardware evidence from an Event about a node."""
    if event.involved_object.kind != "Node" or not REASONS.fullmatch(event.reason):
        return None
    moment = event.last_timestamp or event.event_time or event.first_timestamp or event.metadata.creation_timestamp
    seconds = moment.timestamp() if moment is not None else 0.0
    return HardwareEvidence(event.involved_object.name, seconds, f"{event.reason}: {event.message}")
