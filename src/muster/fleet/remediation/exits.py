"""When a node is trusted again: only a passed test that is newer than everything that speaks against it."""

from __future__ import annotations

from muster.api.node_remediation import NodeRemediation
from muster.fleet.remediation.record import BOOT, BOOTED, RESET, asks, episode, is_a, last, seconds
from muster.fleet.remediation.snapshot import Evidence, NodeView, Tested


def tested_after(session: NodeRemediation, evidence: Evidence | None) -> float:
    """Return the moment after which a test must have ended to say how the node is now, in seconds since the epoch.

    That is when the session was opened, when the newest evidence was seen, when the GPUs were reset or the machine
    booted, when that was given up, or when a person asked for the node's release; before a reboot that was asked for
    has come about no test counts, nor while a person wants the node out of use.
    """
    request = session.spec.request
    if asks(session, "Quarantine"):
        return float("inf")
    steps = episode(session.status)
    moment = seconds(steps[0].time) if steps else seconds(session.status.since)
    if request is not None:
        moment = max(moment, seconds(request.time))
    for step, before in zip(steps, (None, *steps), strict=False):
        # A reset or reboot that came to nothing may have left anything behind: what was tested before says no more.
        in_vain = before is not None and before.rung in ("ResetGPU", "Reboot") and step.rung != before.rung
        if in_vain or is_a(step, RESET) or is_a(step, BOOTED):
            moment = max(moment, seconds(step.time))
    if session.status.rung == "Reboot" and last(session.status, BOOT) and not is_booted(session):
        return float("inf")
    if session.status.rung == "ResetGPU" and last(session.status, RESET) is None:
        return float("inf")
    return max(moment, *(finding.last_s for finding in evidence.findings), 0.0) if evidence is not None else moment


def is_booted(session: NodeRemediation) -> bool:
    """Whether the reboot that was asked for last has come about."""
    asked, booted = last(session.status, BOOT), last(session.status, BOOTED)
    return asked is not None and booted is not None and booted.generation > asked.generation


def is_own(tested: Tested | None, node: NodeView) -> bool:
    """Whether the test is of this node, in the boot it is in, and still counts."""
    if tested is None or tested.revoked:
        return False
    return tested.node_uid == node.uid and tested.boot_id == node.boot_id


def passed(session: NodeRemediation, node: NodeView, tested: Tested | None, evidence: Evidence | None) -> bool:
    """Whether the node may leave quarantine."""
    if tested is None or not tested.passed or not is_own(tested, node) or not node.ready:
        return False
    return tested.time_s > tested_after(session, evidence) and tested.level >= (evidence.test if evidence else 0)


def failed(session: NodeRemediation, node: NodeView, tested: Tested | None) -> bool:
    """Whether the node was tested since the rung it is on has done its part, and did not pass."""
    if tested is None or tested.passed or not is_own(tested, node):
        return False
    return tested.time_s > max(tested_after(session, None), seconds(session.status.since))
