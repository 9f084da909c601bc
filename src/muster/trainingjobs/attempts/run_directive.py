"""The directive of a running attempt, built from its record: a new leader builds the same one."""

from __future__ import annotations

from collections.abc import Sequence

from muster.trainingjobs.attempts import run_record
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
        hosts=tuple(_host(slot) for slot in ordered),
        master_address=record.master_address,
        master_port=record.master_port,
        checkpoint=record.checkpoint,
    )


def _host(slot: Slot) -> Host:
    assert slot.pod is not None
    assert slot.member is not None, "every supervisor has joined"
    return Host(slot.number, slot.pod.uid, slot.member.address, slot.member.shell_port, slot.member.cache_address)
