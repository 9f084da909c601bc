"""The same fault on many nodes at once is nobody's own: a switch, a driver, an image. It goes to a person, once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from muster.fleet.remediation.config import SharedFaults
from muster.fleet.remediation.rungs import ORDER, TARGET
from muster.fleet.remediation.snapshot import Evidence


def shared_faults(evidence: Mapping[str, Evidence], config: SharedFaults, now: float) -> dict[str, int]:
    """Return by CHECK/CODE how many nodes have come by it within the window, where they are too many.

    Counted is what would put a node out of use, by when it was first seen there.
    """
    if not config.nodes:
        return {}
    nodes: dict[str, int] = defaultdict(int)
    for each in evidence.values():
        if ORDER[TARGET[each.action]] >= ORDER["Quarantine"] and each.first_s > now - config.window_s:
            nodes[each.key] += 1
    return {key: count for key, count in nodes.items() if key and count >= config.nodes}
