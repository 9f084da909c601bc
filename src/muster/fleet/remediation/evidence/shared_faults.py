"""Detects faults shared by many nodes, caused by a switch, a driver or an image. An operator is notified once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from muster.fleet.remediation.config import SharedFaults
from muster.fleet.remediation.ladder.rungs import ORDER, TARGET
from muster.fleet.remediation.snapshot import Evidence


def shared_faults(evidence: Mapping[str, Evidence], config: SharedFaults, now: float) -> dict[str, int]:
    """Return by CHECK/CODE how many nodes got the fault within the window, if there are too many.

    Only evidence that would put a node out of use counts, by the time when it was first seen there.
    """
    if not config.nodes:
        return {}
    nodes: dict[str, int] = defaultdict(int)
    for each in evidence.values():
        if ORDER[TARGET[each.action]] >= ORDER["Quarantine"] and each.first_s > now - config.window_s:
            nodes[each.key] += 1
    return {key: count for key, count in nodes.items() if key and count >= config.nodes}
