"""What decide wants done, as data: the controller carries it out and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from muster.api.names import LABEL_TEAM
from muster.api.placement import LeavingReason, Placement
from muster.scheduler.queue.backfill import Start
from muster.scheduler.queue.demand import Demand
from muster.scheduler.reasons import Reason


class Settings(msgspec.Struct, frozen=True):
    """Deadlines of the scheduler, in seconds.

    Attributes:
        bind_deadline_s: a gang is bound as a whole within this, or released.
        hold_s: slots of a gang without any live pod are kept this long.
        reported_per_queue: gangs behind the head of a queue that a plan names; the rest is only counted.
        leave_slack_s: a gang told to leave whose controller does nothing is deleted this long after its grace.
        evict_within_s: a gang of which evictions are refused for so long stays. One that was cut off half-way spends
            its budget for two minutes (kubernetes pkg/controller/disruption, DeletionTimeout).
        backfill_depth: gangs with a time limit behind the head that are tried on its nodes before it starts.
        team_key: label of nodes and pods that names their team, and key of the taint of nodes.
        preflight_required: nodes with GPUs are used only once they have passed their tests (docs/preflight.md).
    """

    bind_deadline_s: float = 30.0
    hold_s: float = 600.0
    reported_per_queue: int = 20
    backfill_depth: int = 50
    leave_slack_s: float = 30.0
    evict_within_s: float = 150.0
    team_key: str = LABEL_TEAM
    preflight_required: bool = False


class WritePlacement(msgspec.Struct, frozen=True):
    """Create the placement, or replace it under its resourceVersion. `reason` says what moved: "" for a new one."""

    gang: str
    placement: Placement
    reason: str = ""

    @property
    def create(self) -> bool:
        """Whether there is none yet."""
        return not self.placement.metadata.resource_version


class DeletePlacement(msgspec.Struct, frozen=True):
    """Delete the placement, if it is still this version."""

    gang: str
    placement: Placement
    reason: str


class MarkBound(msgspec.Struct, frozen=True):
    """The whole gang is bound: say so in the placement's status."""

    gang: str
    placement: Placement


class ReleaseGang(msgspec.Struct, frozen=True):
    """The gang was not bound as a whole in time: write phase Released, so that whoever leads goes on releasing it."""

    gang: str
    placement: Placement
    reason: str


class TellToLeave(msgspec.Struct, frozen=True):
    """A gang is to give its nodes back: write phase Preempting, and its controller saves and deletes its pods."""

    gang: str
    placement: Placement
    reason: LeavingReason
    message: str


class RemoveMember(msgspec.Struct, frozen=True):
    """Mark the bound pod as disrupted and delete it, by UID; its owner makes it anew.

    `why` is the reason of its DisruptionTarget condition.
    """

    gang: str
    namespace: str
    pod: str
    uid: str
    reason: str
    why: str = "GangNotBound"


class TryEviction(msgspec.Struct, frozen=True):
    """Ask in a dry run whether all these pods, (name, UID), may be evicted; `by` is the gang they are to leave for."""

    gang: str
    namespace: str
    pods: tuple[tuple[str, str], ...]
    by: str


class EvictMember(msgspec.Struct, frozen=True):
    """Evict the pod, by UID, as its disruption budget allows; its owner makes it anew. `reason` is for people."""

    gang: str
    namespace: str
    pod: str
    uid: str
    reason: str


class StayOn(msgspec.Struct, frozen=True):
    """The gang was told to leave and not all of it may: it keeps its slots, and is mended. Write phase Bound again."""

    gang: str
    placement: Placement
    reason: str


class Bind(msgspec.Struct, frozen=True):
    """Bind the pod, by UID. `slot` is None-like (-1) for a pod that is no member of a placed gang."""

    gang: str
    namespace: str
    pod: str
    uid: str
    node: str
    slot: int = -1


class Refuse(msgspec.Struct, frozen=True):
    """Say on a pod that it will never be placed as it is: PodScheduled False with this reason."""

    gang: str
    namespace: str
    pod: str
    uid: str
    reason: Reason


Action = (
    WritePlacement
    | DeletePlacement
    | MarkBound
    | ReleaseGang
    | TellToLeave
    | StayOn
    | RemoveMember
    | TryEviction
    | EvictMember
    | Bind
    | Refuse
)


class Plan(msgspec.Struct, frozen=True):
    """Everything to do now.

    Attributes:
        waiting: why each gang that was looked at waits, by key.
        unreported: gangs behind these that were only counted.
        wake_at: decide again at this time even if nothing happens; None where only events matter.
        starts: when gangs that wait for nodes start, by key; a gang that is not in it starts nobody knows when.
        demands: what cluster autoscalers are to see.
    """

    actions: tuple[Action, ...] = ()
    waiting: Mapping[str, Reason] = {}
    unreported: int = 0
    wake_at: float | None = None
    starts: Mapping[str, Start] = {}
    demands: tuple[Demand, ...] = ()
