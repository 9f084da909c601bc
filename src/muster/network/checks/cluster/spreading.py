"""The patch that spreads the pods of cluster DNS over nodes, racks and zones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from muster.api.names import LABEL_RACK, LABEL_ZONE

HOSTNAME: Final = "kubernetes.io/hostname"
_SURGE: Final = 0.25
"""Share of additional pods in a rolling update (Deployment, maxSurge): they need a node of their own too."""


def must_spread(replicas: int, nodes: int) -> bool:
    """Return whether each pod can have a node of its own, also during an update.

    If not, a required rule would leave pods pending, so a preference has to do.
    """
    return nodes >= replicas + max(1, round(replicas * _SURGE))


def spread_patch(labels: Mapping[str, str], replicas: int, nodes: int, *, racks: bool, zones: bool) -> dict[str, Any]:
    """Return the strategic merge patch for a Deployment.

    Args:
        labels: by which the Deployment selects its pods.
        replicas: its pods.
        nodes: nodes that they may run on.
        racks: whether nodes are labelled with their rack.
        zones: whether nodes are labelled with their zone.
    """
    selector = {"matchLabels": dict(labels)}
    term = {"labelSelector": selector, "topologyKey": HOSTNAME}
    anti: dict[str, Any] = (
        {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        if must_spread(replicas, nodes)
        else {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    )
    spec: dict[str, Any] = {"affinity": {"podAntiAffinity": anti}}
    domains = [key for key, there in ((LABEL_ZONE, zones), (LABEL_RACK, racks)) if there]
    if domains:
        spec["topologySpreadConstraints"] = [
            {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}
            for key in domains
        ]
    return {"spec": {"template": {"spec": spec}}}


def patch_command(deployment: str, patch: Mapping[str, Any]) -> str:
    """Return the command line that applies the patch."""
    return f"kubectl patch deployment {deployment} -n kube-system --type=strategic -p '{json.dumps(patch)}'"
