"""Examines the network of this machine, without a cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from muster.api.finding import Unseen
from muster.api.reader import OwnCost
from muster.network.checks.cluster.examine import in_order
from muster.network.checks.kinds import KINDS
from muster.network.checks.node.evidence import Settings
from muster.network.checks.node.examine import examine
from muster.network.checks.node.privileged import examine_privileged
from muster.network.checks.node.read import NodePaths, read_node
from muster.network.checks.problem import finding_of
from muster.network.checks.report import Report
from muster.network.traffic.backend import BackendError

_NOT_HOST: Final = (
    "this is a network namespace of its own, such as a pod's, so only its own links, routes and rules were read; run "
    "the command on the node, or in a pod with hostNetwork: true"
)


def examine_machine(name: str, proc: Path, settings: Settings, window_s: float) -> Report:
    """Read everything twice, and return what is wrong. Blocks for the window.

    Args:
        name: of this machine.
        proc: its /proc.
        settings: of the operator.
        window_s: time between the two readings. Counters that rose in it are reported.

    Raises:
        OSError: the kernel has no rtnetlink.
    """
    where = NodePaths.below(proc)
    before = read_node(where)
    time.sleep(window_s)
    now = read_node(where)
    problems = examine(now, before, settings)
    unread = [Unseen("the network of this machine", why) for why in now.unread]
    if not where.is_host():
        unread.append(Unseen("the machine's neighbour tables, links and firewalls", _NOT_HOST))
    examined = ["the network of this machine"]
    try:
        problems += examine_privileged(proc)
        examined.append("firewalls of this machine")
    except (OSError, BackendError) as error:
        unread.append(Unseen("firewalls of this machine", f"{error}; run this as root"))
    return Report(
        nodes=1,
        planned_nodes=settings.planned_nodes,
        checked_nodes=1,
        examined=tuple(examined),
        findings=in_order([finding_of(KINDS[each.check, each.code], each, name) for each in problems]),
        unseen=tuple(unread),
        own_cost=OwnCost(),
    )
