"""Directs and deletes the pods of a job that is stopped on purpose."""

from __future__ import annotations

from muster.trainingjobs.attempts.backfilled import is_backfilled
from muster.trainingjobs.faults.evidence import node_ready
from muster.trainingjobs.plan import Action, DeletePod, Desired, Direct, Directive, Reason
from muster.trainingjobs.pods.slots import Slot, pod_uids
from muster.trainingjobs.snapshot import JobSnapshot


def last_directive(
    snapshot: JobSnapshot, slots: list[Slot], desired: Desired, *, checkpoint_now: bool = False
) -> Direct:
    """Returns the directive for the supervisors of a stopping job; `run` leaves running ranks alone."""
    job = snapshot.job
    return Direct(
        Directive(
            attempt=job.status.attempt,
            desired=desired,
            grace_s=job.spec.stop_grace_seconds,
            slots=pod_uids(slots),
            checkpoint_now=checkpoint_now,
            backfilled=is_backfilled(job.status),
        )
    )


def delete_all(snapshot: JobSnapshot, reason: Reason) -> list[Action]:
    """Delete every pod that is not being deleted yet."""
    return [
        DeletePod(pod.name, pod.uid, reason, force=lost(snapshot, pod.spec.node_name))
        for pod in snapshot.pods
        if not pod.terminating
    ]


def lost(snapshot: JobSnapshot, node: str) -> bool:
    """Returns whether the node is lost, so that no kubelet can confirm the end of a pod."""
    return bool(node) and not node_ready(snapshot.nodes.get(node))
