"""The plan of `decide`: typed actions in order. The executor stops at the first action that fails."""

from __future__ import annotations

from typing import Literal

import msgspec

from muster.api.run_record import CopyPartners, HandedCheckpoint
from muster.api.training_job import Launcher, RemoteShell
from muster.api.training_job_status import TrainingJobStatus

Desired = Literal["hold", "run", "exit"]

Reason = Literal[
    "Created",
    "InvalidSpec",
    "SpecIgnored",
    "SpecRestored",
    "Suspended",
    "Resumed",
    "CheckpointAwaited",
    "CheckpointGone",
    "NotWritable",
    "DataNotReadable",
    "CheckpointNotFound",
    "CheckpointRecovered",
    "CheckpointQuarantined",
    "CheckpointsBad",
    "CopiesInOneDomain",
    "Restored",
    "OtherCheckpoints",
    "ContinuesFrom",
    "Preempted",
    "Backfilled",
    "AskedToLeave",
    "Shrunk",
    "Growing",
    "Starting",
    "Running",
    "Recorded",
    "StatusLost",
    "Restarting",
    "AttemptEnded",
    "Reattributed",
    "Useful",
    "Progress",
    "Quiet",
    "Stalled",
    "StallEnded",
    "RankIdle",
    "RankRuns",
    "Succeeded",
    "Failed",
    "TimeLimit",
    "CannotStart",
    "PodsRefused",
    "Waiting",
    "Forecast",
    "SlotEmpty",
    "SlotBroken",
    "Superseded",
    "NodeBack",
    "Ended",
    "Expired",
]


class Host(msgspec.Struct, frozen=True):
    """One node of a running attempt, at its node rank."""

    slot: int
    pod_uid: str
    address: str
    shell_port: int
    cache_address: str = ""
    """Where other nodes reach this node's cache; "" without one."""


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks of one attempt start and connect, from the record in the status."""

    launcher: Launcher
    command: tuple[str, ...]
    mpi_args: tuple[str, ...]
    remote_shell: RemoteShell = "supervisor"
    ranks_per_node: int
    hosts: tuple[Host, ...]
    master_address: str
    master_port: int
    checkpoint: HandedCheckpoint | None
    partners: CopyPartners | None = None


class Directive(msgspec.Struct, frozen=True, kw_only=True):
    """The directive for every supervisor of the gang; `run` is None until all have joined.

    A supervisor that already runs this attempt continues. Any other supervisor holds until `run` is set.
    """

    attempt: int
    desired: Desired
    exit_code: int = 0
    grace_s: int = 30
    run: RunPlan | None = None
    slots: tuple[str, ...] = ()
    """Pod UID by slot. Supervisors of other pods are directed to exit."""
    look: tuple[str, ...] = ()
    """Checkpoints that a holding supervisor searches for and reports."""
    checkpoint_now: bool = False
    """Whether to ask the ranks for a checkpoint, because Muster is about to stop them."""
    backfilled: bool = False
    """Whether the job is backfilled, so that the ranks know that it may be asked to leave."""


class WriteStatus(msgspec.Struct, frozen=True):
    """Replace the status, on the condition that the job has not changed since the decision."""

    status: TrainingJobStatus
    reason: Reason


class CreatePod(msgspec.Struct, frozen=True):
    """Create the pod of a slot. Its name contains the attempt, so it can be created only once."""

    slot: int
    attempt: int
    excluded_nodes: tuple[str, ...]
    reason: Reason


class DeletePod(msgspec.Struct, frozen=True):
    """Delete the pod with this UID. `force`: without a grace period, because no kubelet can confirm its end."""

    name: str
    uid: str
    reason: Reason
    force: bool = False


class Direct(msgspec.Struct, frozen=True):
    """Send the directive to the supervisors."""

    directive: Directive


class DeleteJob(msgspec.Struct, frozen=True):
    """Delete the job, whose time to live has passed."""

    reason: Reason


class RecordEvent(msgspec.Struct, frozen=True):
    """Write an Event about the job."""

    reason: Reason
    message: str
    warning: bool = False


Action = WriteStatus | CreatePod | DeletePod | Direct | DeleteJob | RecordEvent


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Actions in order, and when to decide again even if nothing changes (seconds since the epoch)."""

    actions: tuple[Action, ...] = ()
    wake_at: float | None = None
