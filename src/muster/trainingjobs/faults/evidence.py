"""Collects evidence of faults from a snapshot: pods, containers, nodes, silence, exits of ranks, broken hardware."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from muster.api.names import WORKER_CONTAINER
from muster.api.training_job_status import Fault
from muster.kube.objects.container import ContainerStatus
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod, PodCondition
from muster.trainingjobs.attempts import start_failures
from muster.trainingjobs.attempts.final_checkpoint import waits_for
from muster.trainingjobs.faults.rules import HARDWARE_WINDOW_S, Evidence
from muster.trainingjobs.observed import Fact
from muster.trainingjobs.pods.slots import Clock, Slot
from muster.trainingjobs.snapshot import CONTACT_TIMEOUT_S, CUT_TIMEOUT_S, REJOIN_S, JobSnapshot, Member

BLACKOUT_S: Final = 120.0
"""If more than half of all supervisors fell silent at once, wait this long for the API server's view."""
_NODE_CACHE_LAG_S: Final = 10.0
"""A missing node counts only after this time, because the cache may show a bound pod before its node."""
_NOT_READY_S: Final = 30.0
"""A node that is not Ready and whose supervisor is silent counts as lost after this time."""
_LEASE_S: Final = 40.0
_START_S: Final = 600.0
"""The limit for a bound pod's worker to start and join."""
_AT_ONCE: Final = frozenset({"InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed"})
_SOON: Final = frozenset({"CreateContainerConfigError", "RunContainerError", "CreateContainerError"})
_SOON_S: Final = 60.0


def broken(snapshot: JobSnapshot, slot: Slot, clock: Clock) -> Evidence | None:
    """Returns why the slot's pod can no longer be used; None if it can be, or may become usable."""
    pod = slot.pod
    if pod is None:
        return None
    return (
        _pod(snapshot, slot, pod, clock)
        or _node(snapshot, slot, pod, clock)
        or _waiting(snapshot, slot, pod, clock)
        or _contact(snapshot, slot, pod, clock)
    )


def gone(slot: Slot, clock: Clock) -> Evidence:
    """Evidence that the pod of a running attempt does not exist."""
    return Evidence(kind="pod", slot=slot.number, seen_at=clock.now, reason="Gone", message="its pod is gone")


def rank_exit(slot: Slot, attempt: int) -> Evidence | None:
    """Evidence that a rank or the launcher failed in this attempt, as the slot's supervisor reported it."""
    member = slot.member
    if member is None or member.exit is None or member.exit.attempt != attempt:
        return None
    ended = member.exit
    if ended.code == 0 and ended.signal == 0:
        return None
    rank = -1 if ended.rank is None else ended.rank
    return Evidence(
        kind="start" if ended.errno else "rank" if rank >= 0 else "launcher",
        slot=slot.number,
        seen_at=member.exit_at,
        node=slot.node,
        reason=ended.how,
        code=ended.code,
        signal=ended.signal,
        rank=rank,
        message=start_failures.what(ended) if ended.errno else "\n".join(ended.tail),
        time=ended.time,
    )


def hardware(snapshot: JobSnapshot, nodes: dict[str, int], fault_time: float) -> Iterator[Evidence]:
    """Hardware evidence near the fault on these nodes (name -> slot)."""
    for each in snapshot.hardware:
        if each.node in nodes and abs(each.time - fault_time) <= HARDWARE_WINDOW_S:
            yield Evidence(
                kind="hardware",
                slot=nodes[each.node],
                seen_at=each.time,
                node=each.node,
                message=each.message,
                time=each.time,
            )


def node_ready(node: Node | None) -> bool:
    """Returns whether the node exists and is Ready."""
    return node is not None and node.ready


def _seconds(moment: datetime | None, otherwise: float) -> float:
    return moment.timestamp() if moment is not None else otherwise


def _pod(snapshot: JobSnapshot, slot: Slot, pod: Pod, clock: Clock) -> Evidence | None:
    disruption = next((c for c in pod.status.conditions if c.type == "DisruptionTarget" and c.status == "True"), None)
    if pod.finished:
        ended = None if pod.status.reason else _terminated(slot, pod, clock)
        if ended is not None and (disruption is None or ended.code == 0 or _ended_before(ended, disruption)):
            return ended
        reason = pod.status.reason or (disruption.reason if disruption else "")
        return Evidence(
            kind="pod" if reason else "container",
            slot=slot.number,
            seen_at=clock.now,
            node=slot.node,
            reason=reason,
            message=pod.status.message or (disruption.message if disruption else "") or "the pod ended",
        )
    if pod.terminating and not (waits_for(snapshot, slot, pod, clock) or _may_have_ended(snapshot, slot, pod, clock)):
        return Evidence(
            kind="pod",
            slot=slot.number,
            seen_at=clock.now,
            node=slot.node,
            reason=disruption.reason if disruption else "Deleted",
            message=(disruption.message if disruption else "") or "the pod was deleted",
            time=_seconds(pod.metadata.deletion_timestamp, 0.0) - (pod.metadata.deletion_grace_period_seconds or 0),
        )
    return None


def _ended_before(ended: Evidence, disruption: PodCondition) -> bool:
    """Returns whether a container ended before the disruption of its pod began, so not because of it."""
    began = disruption.last_transition_time
    return began is not None and 0.0 < ended.time < began.timestamp()


def _may_have_ended(snapshot: JobSnapshot, slot: Slot, pod: Pod, clock: Clock) -> bool:
    """Returns whether the supervisor of a terminating pod may still report a successful end to a new controller."""
    if slot.member is not None or snapshot.job.status.phase != "Running" or not _had_joined(snapshot, slot):
        return False
    since = _seen(snapshot, pod.uid, "terminating", clock)
    gone_by = since + (pod.metadata.deletion_grace_period_seconds or 0)
    return not clock.passed(min(gone_by, snapshot.leading_since + REJOIN_S))


def _terminated(slot: Slot, pod: Pod, clock: Clock) -> Evidence | None:
    """Evidence from the containers of a finished pod: from the one that failed, else from the worker."""
    ended = [
        (status, status.state.terminated)
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
        if status.state is not None and status.state.terminated is not None
    ]
    failed = next((each for each in ended if each[1].exit_code != 0), None)
    worker = next((each for each in ended if each[0].name == WORKER_CONTAINER), None)
    chosen = failed or worker
    if chosen is None:
        return None
    status, state = chosen
    return Evidence(
        kind="container",
        slot=slot.number,
        seen_at=clock.now,
        node=slot.node,
        reason=state.reason,
        code=state.exit_code,
        signal=state.signal,
        message=state.message or f"container {status.name} ended: {state.reason or 'exit'} {state.exit_code}",
        time=_seconds(state.finished_at, 0.0),
    )


def _node(snapshot: JobSnapshot, slot: Slot, pod: Pod, clock: Clock) -> Evidence | None:
    name, member = pod.spec.node_name, slot.member
    if not name or (member is not None and member.silent_since is None):
        return None  # if the supervisor polls, its node works
    node = snapshot.nodes.get(name)
    reason, since = "NotReady", clock.now
    if node is None:
        reason, since = "Deleted", _seen(snapshot, pod.uid, "bound", clock) + _NODE_CACHE_LAG_S
    elif was_replaced(snapshot, slot.number, name):
        reason, since = "Replaced", clock.now
    elif not node.ready:
        since = _seen(snapshot, name, "notReady", clock) + _NOT_READY_S
        if member is None:
            since = max(since, snapshot.leading_since + REJOIN_S)
    else:
        return None
    if member is not None and member.silent_since is not None:
        since = member.silent_since + CUT_TIMEOUT_S
    if not clock.passed(since):
        return None
    message = {
        "Deleted": f"node {name} is gone",
        "Replaced": f"another node has the name {name} now",
        "NotReady": f"node {name} is not Ready and its supervisor is silent",
    }[reason]
    at = member.silent_since if member is not None and member.silent_since is not None else clock.now
    return Evidence(kind="node", slot=slot.number, seen_at=at, node=name, reason=reason, message=message)


def node_gone(snapshot: JobSnapshot, fault: Fault, clock: Clock) -> Evidence | None:
    """Evidence that the node of a fault was deleted or replaced just after the fault.

    The node's last reports were consequences of that.
    """
    if not fault.node or clock.now - _seconds(fault.time, 0.0) > HARDWARE_WINDOW_S:
        return None
    if not 0 <= fault.slot < snapshot.job.spec.replicas:
        return None  # the job was resumed with fewer nodes since
    node, reason = snapshot.nodes.get(fault.node), "Deleted"
    if node is not None:
        placed = _placed_uid(snapshot, fault.slot, fault.node)
        if not placed or placed == node.uid:
            return None
        reason = "Replaced"
    message = f"node {fault.node} is gone" if node is None else f"another node has the name {fault.node} now"
    return Evidence(kind="node", slot=fault.slot, seen_at=clock.now, node=fault.node, reason=reason, message=message)


def was_replaced(snapshot: JobSnapshot, number: int, name: str) -> bool:
    """Returns whether the node that the scheduler chose for the slot was recreated under the same name."""
    node, placed = snapshot.nodes.get(name), _placed_uid(snapshot, number, name)
    return node is not None and bool(placed and node.uid) and placed != node.uid


def _placed_uid(snapshot: JobSnapshot, number: int, node: str) -> str:
    """The UID of the node that the scheduler chose for a slot, if the Placement still names that node."""
    slots = snapshot.placement.spec.slots if snapshot.placement is not None else ()
    at = slots[number] if number < len(slots) and slots[number].slot == number else None
    at = at or next((each for each in slots if each.slot == number), None)
    return at.node_uid if at is not None and at.node == node else ""


def _seen(snapshot: JobSnapshot, subject: str, fact: Fact, clock: Clock) -> float:
    return snapshot.seen.get((subject, fact), clock.now)


def _waiting(snapshot: JobSnapshot, slot: Slot, pod: Pod, clock: Clock) -> Evidence | None:
    if not pod.spec.node_name or slot.member is not None:
        return None
    waiting = next(_waits((*pod.status.init_container_statuses, *pod.status.container_statuses)), None)
    reason, message = waiting or ("", "")
    if waiting is None and pod.status.phase == "Running":
        return None
    started = _seen(snapshot, pod.uid, "started" if pod.status.start_time is not None else "bound", clock)
    patience_s = 0.0 if reason in _AT_ONCE else _SOON_S if reason in _SOON else _START_S
    if not clock.passed(started + patience_s):
        return None
    return Evidence(
        kind="waiting",
        slot=slot.number,
        seen_at=clock.now,
        node=slot.node,
        reason=reason,
        message=message or f"the pod did not start within {patience_s:.0f} s",
    )


def _waits(statuses: tuple[ContainerStatus, ...]) -> Iterator[tuple[str, str]]:
    for status in statuses:
        if status.state is not None and status.state.waiting is not None:
            waiting = status.state.waiting
            if waiting.reason not in ("PodInitializing", "ContainerCreating", ""):
                yield waiting.reason, waiting.message


def waiting_message(pod: Pod) -> str:
    """Returns why a bound pod has not started, from its status; "" if unknown."""
    for reason, message in _waits((*pod.status.init_container_statuses, *pod.status.container_statuses)):
        return f"{reason}: {message}" if message else reason
    return ""


def _contact(snapshot: JobSnapshot, slot: Slot, pod: Pod, clock: Clock) -> Evidence | None:
    if pod.status.phase != "Running":
        return None
    member = slot.member
    alive_at = snapshot.leases.get(slot.node, 0.0)
    if member is None:
        running = _seen(snapshot, pod.uid, "running", clock)
        since = max(running + _START_S, snapshot.leading_since + REJOIN_S)
        if _had_joined(snapshot, slot):
            since = snapshot.leading_since + REJOIN_S
        silent_since = since
    elif member.silent_since is not None:
        silent_since = member.silent_since
        patience_s = _patience_s(member, alive_at)
        since = silent_since + patience_s
        if snapshot.strained_at > silent_since:  # the controller may have caused the silence; REJOIN_S limits this
            since = min(snapshot.strained_at + patience_s, max(since, silent_since + REJOIN_S))
    else:
        return None
    if not snapshot.contact_trusted:
        since = max(since, silent_since + BLACKOUT_S)
    if not clock.passed(since):
        return None
    alive = alive_at > silent_since if member is not None else alive_at == 0.0 or clock.now - alive_at < _LEASE_S
    return Evidence(
        kind="contact",
        slot=slot.number,
        seen_at=silent_since,
        node=slot.node,
        reason="Alive" if alive else "Lost",
        message=f"the supervisor on {slot.node} is silent" + (", although its node is alive" if alive else ""),
    )


def _had_joined(snapshot: JobSnapshot, slot: Slot) -> bool:
    """Returns whether the supervisor had joined an earlier controller: attempts run only when all have joined."""
    status = snapshot.job.status
    return slot.attempt < status.attempt or (status.phase == "Running" and slot.number not in status.left_out)


def _patience_s(member: Member, alive_at: float) -> float:
    refuted = member.silent_since is not None and alive_at > member.silent_since
    return CUT_TIMEOUT_S if member.cut and not refuted else CONTACT_TIMEOUT_S
