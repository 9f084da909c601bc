"""The directive of a running attempt, built from its record: a new leader builds the same one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.kube.objects.node import Node
from muster.trainingjobs.attempts import run_record
from muster.trainingjobs.attempts.cache_address import cache_address
from muster.trainingjobs.plan import Host, RunPlan
from muster.trainingjobs.pods.slots import Slot
from muster.trainingjobs.snapshot import JobSnapshot


def run_plan(snapshot: JobSnapshot, slots: Sequence[Slot]) -> RunPlan | None:
    """Return the run plan of the current attempt; None without a record, or while a supervisor has not reported yet."""
    spec, status = snapshot.job.spec, snapshot.job.status
    record, ordered = run_record.recorded(status), run_record.in_rank_order(status, slots)
    if record is None or ordered is None or not all(slot.member and slot.member.address for slot in ordered):
        return None
    return RunPlan(
        launcher=record.launcher,
        command=(*spec.command, *spec.args),
        mpi_args=spec.mpi.extra_args if spec.mpi is not None else (),
        remote_shell=spec.mpi.remote_shell if spec.mpi is not None else "supervisor",
        ranks_per_node=record.ranks_per_node,
        hosts=tuple(_host(slot, snapshot.nodes) for slot in ordered),
        master_address=record.master_address,
        master_port=record.master_port,
        checkpoint=record.checkpoint,
        partners=record.partners,
    )


def _host(slot: Slot, nodes: Mapping[str, Node]) -> Host:
    assert slot.pod is not None
    assert slot.member is not None, "every supervisor has joined"
    member = slot.member
    return Host(slot.number, slot.pod.uid, member.address, member.shell_port, cache_address(slot, nodes))
