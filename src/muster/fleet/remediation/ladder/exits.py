"""Decides when a node is trusted again: only after a passed test that is newer than all evidence against it."""

from __future__ import annotations

from muster.api.node_remediation import NodeRemediation
from muster.fleet.remediation.ladder.record import asks, episode, last, seconds
from muster.fleet.remediation.snapshot import Evidence, RemediationNode, Tested


def tested_after(session: NodeRemediation, evidence: Evidence | None) -> float:
    """Return the time after which a test must have ended to count, in seconds since the epoch.

    It is the latest of these times:

    - the session was opened, or a user asked for the node's release;
    - the newest evidence was seen;
    - the GPUs were reset, the machine booted, or a reset or reboot was given up.

    It is infinite while a requested reset, reboot or replacement is not done, and while a user wants the node out of
    use.
    """
    request = session.spec.request
    if asks(session, "Quarantine") or is_being_replaced(session):
        return float("inf")
    steps = episode(session.status)
    moment = seconds(steps[0].time) if steps else seconds(session.status.since)
    if request is not None:
        moment = max(moment, seconds(request.time))
    for step, before in zip(steps, (None, *steps), strict=False):
        # A failed reset or reboot may have left the node in any state: earlier tests do not count.
        left_rung = before is not None and before.rung in ("ResetGPU", "Reboot") and step.rung != before.rung
        if left_rung or step.event in ("Reset", "Booted"):
            moment = max(moment, seconds(step.time))
    if session.status.rung == "Reboot" and last(session.status, "RebootRequested") and not is_booted(session):
        return float("inf")
    if session.status.rung == "ResetGPU" and last(session.status, "Reset") is None:
        return float("inf")
    return max(moment, *(finding.last_s for finding in evidence.findings), 0.0) if evidence is not None else moment


def is_booted(session: NodeRemediation) -> bool:
    """Return whether the last requested reboot is done."""
    asked, booted = last(session.status, "RebootRequested"), last(session.status, "Booted")
    return asked is not None and booted is not None and booted.generation > asked.generation


def is_being_replaced(session: NodeRemediation) -> bool:
    """Return whether a provider was asked to replace the machine: it may do so late, and the request is final."""
    status = session.status
    return status.rung == "Replace" and last(status, "ReplaceRequested", "Replace") is not None


def is_own(tested: Tested | None, node: RemediationNode) -> bool:
    """Return whether the test belongs to this node and its current boot, and was not revoked."""
    if tested is None or tested.revoked:
        return False
    return tested.node_uid == node.uid and tested.boot_id == node.boot_id


def passed(session: NodeRemediation, node: RemediationNode, tested: Tested | None, evidence: Evidence | None) -> bool:
    """Return whether the node has passed the test that ends its quarantine."""
    if tested is None or not tested.passed or not is_own(tested, node) or not node.ready:
        return False
    return tested.time_s > tested_after(session, evidence) and tested.level >= (evidence.test if evidence else 0)


def failed(session: NodeRemediation, node: RemediationNode, tested: Tested | None) -> bool:
    """Return whether the node failed a test after the action of its current rung."""
    if tested is None or tested.passed or not is_own(tested, node):
        return False
    return tested.time_s > max(tested_after(session, None), seconds(session.status.since))
